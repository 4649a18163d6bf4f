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
def _template() -> ModuleType:
    return import_module("actfit.kernels.engine.templates.elementwise")


def rows_a_program(count: int, elements: int = 8, usual: int = ROWS) -> int:
    """Rows of some elements. The interpreter runs programs one by one: it gets a few large ones."""
    return min(1 << max((count - 1) // elements, 0).bit_length(), (1 << 16) // elements) if interpreting() else usual


def _constants(spec: KernelSpec, dtype: torch.dtype, count: int) -> dict[str, Any]:
    return {
        "STORAGE": spec.storage.name,
        "MINIMUM": spec.function.minimum,
        "CUT": spec.function.cuts.get(dtype_name(dtype)),
        "BITS": spec.stored_bits,
        "STEPS": table_of(spec).steps if spec.storage is TABLE_CODES else 0,
        "ROWS": rows_a_program(count),
        **OPTIONS,
    }


def _grid(count: int) -> tuple[int]:
    return (-(-count // (8 * rows_a_program(count))),)


def forward(spec: KernelSpec, x: Tensor, params: Sequence[float]) -> tuple[Tensor, Tensor]:
    """y = f(x) and what is saved, for a contiguous x on a GPU, or on the CPU under the interpreter."""
    y, saved = torch.empty_like(x), allocate(spec, x)
    if count := x.numel():
        element, encode, _ = triton_elements(spec.key, x.dtype)
        table = device_table(spec.key, x.device) if spec.storage is TABLE_CODES else y
        with device_of(x):
            _template().forward_kernel[_grid(count)](
                x, y, saved, table, tuple(params) or (0.0,), count,
                FORWARD=element, ENCODE=encode, **_constants(spec, x.dtype, count),
            )  # fmt: skip
    return y, saved


def backward(spec: KernelSpec, grad: Tensor, y: Tensor | None, saved: Tensor, params: Sequence[float]) -> Tensor:
    """dx = grad * f'(x), for contiguous tensors."""
    dx = torch.empty_like(grad)
    if count := grad.numel():
        *_, decode = triton_elements(spec.key, grad.dtype)
        table = device_table(spec.key, grad.device) if spec.storage is TABLE_CODES else grad
        with device_of(grad):
            _template().backward_kernel[_grid(count)](
                grad, grad if y is None else y, saved, table, dx, tuple(params) or (0.0,), count,
                DECODE=decode, **_constants(spec, grad.dtype, count),
            )  # fmt: skip
    return dx


def levels(spec: KernelSpec, saved: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """The levels of the packed codes of a table in memory: `count` numbers of the dtype, flat."""
    values = saved.new_empty(count, dtype=dtype)
    if count:
        with device_of(saved):
            _template().levels_kernel[_grid(count)](
                saved, device_table(spec.key, saved.device), values, count,
                BITS=spec.stored_bits, STEPS=table_of(spec).steps, ROWS=rows_a_program(count), **OPTIONS,
            )  # fmt: skip
    return values


def _exact_elements(function: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """f and f' of one element."""
    element, derivative, _ = triton_elements(EXACT_KERNELS[function], dtype)
    return element, derivative


def gated(function: str, a: Tensor, b: Tensor) -> Tensor:
    """h = f(a) * b, for contiguous tensors."""
    h = torch.empty_like(a)
    if count := a.numel():
        element, _ = _exact_elements(function, a.dtype)
        with device_of(a):
            _template().gated_kernel[_grid(count)](
                a, b, h, (0.0,), count, FORWARD=element, ROWS=rows_a_program(count), **OPTIONS
            )
    return h


def gated_backward(function: str, grad: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """grad * b * f'(a) and grad * f(a), for contiguous tensors."""
    da, db = torch.empty_like(a), torch.empty_like(b)
    if count := a.numel():
        element, derivative = _exact_elements(function, a.dtype)
        with device_of(a):
            _template().gated_backward_kernel[_grid(count)](
                grad, a, b, da, db, (0.0,), count,
                FORWARD=element, DERIVATIVE=derivative, ROWS=rows_a_program(count), **OPTIONS,
            )  # fmt: skip
    return da, db


def fused_forward(x: Tensor, key: str, with_derivatives: bool) -> list[Tensor]:
    """The results of an emitted function, and its derivatives if they are asked for, for a contiguous x."""
    made = [torch.empty_like(x) for _ in range(emitted_function(key).count * (2 if with_derivatives else 1))]
    if count := x.numel():
        element = module_of(key, "triton", dtype_name(x.dtype)).element
        with device_of(x):
            _template().fused_forward_kernel[_grid(count)](
                x, tuple(made), count, ELEMENT=element, COUNT=len(made), ROWS=rows_a_program(count), **OPTIONS
            )
    return made


def fused_backward(grads: Sequence[Tensor], derivatives: Sequence[Tensor]) -> Tensor:
    """The sum of grad * derivative, for contiguous tensors."""
    dx = torch.empty_like(derivatives[0])
    if count := dx.numel():
        with device_of(dx):
            _template().fused_backward_kernel[_grid(count)](
                tuple(grads), tuple(derivatives), dx, count,
                COUNT=len(derivatives), ROWS=rows_a_program(count), **OPTIONS,
            )  # fmt: skip
    return dx


def device_of(tensor: Tensor) -> Any:
    """A context in which the tensor's GPU is the current one, where Triton launches; no effect for a CPU tensor."""
    return torch.cuda.device_of(tensor)
