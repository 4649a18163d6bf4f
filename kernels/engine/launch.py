"""Run the Triton kernels of `actfit.kernels.engine.templates.elementwise` on contiguous tensors."""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from actfit.kernels.engine.backend import interpreting
from actfit.kernels.engine.elements import EXACT_KERNELS, allocate, device_table, dtype_name, table_of, triton_elements
from actfit.kernels.engine.emitted import emitted_function, module_of
from actfit.kernels.engine.templates import OPTIONS, ROWS
from actfit.kernels.methods.method import KernelSpec
from actfit.kernels.methods.storage import TABLE_CODES


@cache
def template(name: str) -> ModuleType:
    """A module of kernels, imported when it is first needed: Triton need not be installed."""
    return import_module(f"actfit.kernels.engine.templates.{name}")


def rows_a_program(count: int, elements: int = 8, usual: int = ROWS) -> int:
    """Rows of some elements. The interpreter runs programs one by one: it gets a few large ones."""
    return min(1 << max((count - 1) // elements, 0).bit_length(), (1 << 16) // elements) if interpreting() else usual


def run_rows(kernel: Any, like: Tensor, *arguments: Any, **constants: Any) -> None:
    """Run a kernel of rows on the elements of `like`, whose number is its last argument."""
    if count := like.numel():
        rows = rows_a_program(count)
        with device_of(like):
            kernel[-(-count // (8 * rows)),](*arguments, count, ROWS=rows, **constants)


def _launch(name: str, like: Tensor, *arguments: Any, **constants: Any) -> None:
    run_rows(getattr(template("elementwise"), f"{name}_kernel"), like, *arguments, **constants, **OPTIONS)


def _table(spec: KernelSpec, like: Tensor) -> Tensor:
    """The table in memory; without one any tensor, which is not read."""
    return device_table(spec.key, like.device) if spec.storage is TABLE_CODES else like


def forward(spec: KernelSpec, x: Tensor, params: Sequence[float], order: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """y = f(x) and what is saved, for x on a GPU, or on the CPU under the interpreter; `order` as in `reference`."""
    x = (x.permute(*order) if order else x).contiguous()
    y, saved = torch.empty_like(x), allocate(spec, x)
    element, encode, _ = triton_elements(spec.key, x.dtype)
    _launch(
        "forward", x, x, y, saved, _table(spec, y), tuple(params) or (0.0,),
        FORWARD=element, ENCODE=encode, **spec.constants(dtype_name(x.dtype)),
    )  # fmt: skip
    return y, saved


def backward(spec: KernelSpec, grad: Tensor, y: Tensor | None, saved: Tensor, params: Sequence[float]) -> Tensor:
    """dx = grad * f'(x), for contiguous tensors."""
    dx = torch.empty_like(grad)
    *_, decode = triton_elements(spec.key, grad.dtype)
    _launch(
        "backward", grad, grad, grad if y is None else y, saved, _table(spec, grad), dx, tuple(params) or (0.0,),
        DECODE=decode, **spec.constants(dtype_name(grad.dtype)),
    )  # fmt: skip
    return dx


def levels(spec: KernelSpec, saved: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """The levels of the packed codes of a table in memory: `count` numbers of the dtype, flat."""
    values = saved.new_empty(count, dtype=dtype)
    table = device_table(spec.key, saved.device)
    _launch("levels", values, saved, table, values, BITS=spec.stored_bits, STEPS=table_of(spec).steps)
    return values


def gated(function: str, a: Tensor, b: Tensor) -> Tensor:
    """h = f(a) * b, for contiguous tensors."""
    h = torch.empty_like(a)
    element, *_ = triton_elements(EXACT_KERNELS[function], a.dtype)
    _launch("gated", a, a, b, h, (0.0,), FORWARD=element)
    return h


def gated_backward(function: str, grad: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """grad * b * f'(a) and grad * f(a), for contiguous tensors."""
    da, db = torch.empty_like(a), torch.empty_like(b)
    element, derivative, _ = triton_elements(EXACT_KERNELS[function], a.dtype)
    _launch("gated_backward", a, grad, a, b, da, db, (0.0,), FORWARD=element, DERIVATIVE=derivative)
    return da, db


def fused_forward(x: Tensor, key: str, with_derivatives: bool) -> list[Tensor]:
    """The results of an emitted function, and its derivatives if they are asked for, for a contiguous x."""
    made = [torch.empty_like(x) for _ in range(emitted_function(key).count * (2 if with_derivatives else 1))]
    element = module_of(key, "triton", dtype_name(x.dtype)).element
    _launch("fused_forward", x, x, tuple(made), ELEMENT=element, COUNT=len(made))
    return made


def fused_backward(grads: Sequence[Tensor], derivatives: Sequence[Tensor]) -> Tensor:
    """The sum of grad * derivative, for contiguous tensors."""
    dx = torch.empty_like(derivatives[0])
    _launch("fused_backward", dx, tuple(grads), tuple(derivatives), dx, COUNT=len(derivatives))
    return dx


def device_of(tensor: Tensor) -> Any:
    """A context in which the tensor's GPU is the current one, where Triton launches; no effect for a CPU tensor."""
    return torch.cuda.device_of(tensor)
