"""Run the Triton kernels of `kernels.template` on contiguous tensors."""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from kernels.emitted import find, module_of
from kernels.kernel import Kernel, parse, search_table, table

ROWS = 128  # of eight elements, a program: eight elements a thread, so that packing needs no exchange between threads
WARPS = 4


@cache
def _template() -> ModuleType:
    return import_module("kernels.template")


@cache
def _functions(key: str, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """FORWARD, SAVE and SLOPE of a kernel; FORWARD also where there is no other, so that it is a function."""
    kernel = parse(key)
    module = import_module(f"kernels.generated.{kernel.function}_triton")

    def of_dtype(name: str) -> Any:
        suffixes = (f"_{str(dtype).removeprefix('torch.')}", "_16bit", "")
        return next(getattr(module, name + suffix) for suffix in suffixes if hasattr(module, name + suffix))

    forward = of_dtype("forward")
    match kernel.saves:
        case "slope":
            return forward, of_dtype("derivative"), forward
        case "codes":
            return forward, getattr(module, f"code_{kernel.bits}bit"), getattr(module, f"level_{kernel.bits}bit")
        case "table":
            return forward, forward, forward
    return forward, getattr(module, "side", forward), of_dtype("slope")


def interpreting() -> bool:
    """Whether Triton runs kernels in its interpreter, which takes CPU tensors (TRITON_INTERPRET=1 at its import)."""
    from triton import knobs  # at the first call: Triton need not be there

    return bool(knobs.runtime.interpret)


def _rows(count: int) -> int:
    # The interpreter runs program after program: a few large ones.
    return min(1 << max((count - 1) // 8, 0).bit_length(), 1 << 13) if interpreting() else ROWS


def _constants(kernel: Kernel, count: int) -> dict[str, Any]:
    return {
        "SAVES": kernel.saves,
        "MINIMUM": kernel.facts.MINIMUM,
        "BITS": kernel.stored_bits,
        "STEPS": table(kernel.key).steps if kernel.saves == "table" else 0,
        "ROWS": _rows(count),
        "num_warps": WARPS,
    }


def forward(kernel: Kernel, x: Tensor, params: Sequence[float]) -> tuple[Tensor, Tensor]:
    """y = f(x) and what is saved, of a contiguous x on a GPU, or on the CPU under the interpreter."""
    y, saved = torch.empty_like(x), kernel.empty(x)
    count = x.numel()
    if count:
        run, save, _ = _functions(kernel.key, x.dtype)
        constants = _constants(kernel, count)
        found = search_table(kernel.key, x.device) if kernel.saves == "table" else y
        grid = (-(-count // (8 * constants["ROWS"])),)
        with _device_of(x):
            _template().forward_kernel[grid](
                x, y, saved, found, tuple(params) or (0.0,), count, FORWARD=run, SAVE=save, **constants
            )
    return y, saved


def backward(kernel: Kernel, grad: Tensor, y: Tensor | None, saved: Tensor, params: Sequence[float]) -> Tensor:
    """dx = grad * f'(x), of contiguous tensors there."""
    dx = torch.empty_like(grad)
    count = grad.numel()
    if count:
        *_, slope = _functions(kernel.key, grad.dtype)
        constants = _constants(kernel, count)
        found = search_table(kernel.key, grad.device) if kernel.saves == "table" else grad
        grid = (-(-count // (8 * constants["ROWS"])),)
        with _device_of(grad):
            _template().backward_kernel[grid](
                grad,
                grad if y is None else y,
                saved,
                found,
                dx,
                tuple(params) or (0.0,),
                count,
                SLOPE=slope,
                **constants,
            )
    return dx


def gated(function: str, a: Tensor, b: Tensor) -> Tensor:
    """h = f(a) * b, of contiguous tensors there."""
    h = torch.empty_like(a)
    if count := a.numel():
        run, _, _ = _functions(Kernel(function, "forward-ad").key, a.dtype)
        rows = _rows(count)
        with _device_of(a):
            _template().gated_kernel[(-(-count // (8 * rows)),)](
                a, b, h, (0.0,), count, FORWARD=run, ROWS=rows, num_warps=WARPS
            )
    return h


def gated_backward(function: str, grad: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """grad * b * f'(a) and grad * f(a), of contiguous tensors there."""
    da, db = torch.empty_like(a), torch.empty_like(b)
    if count := a.numel():
        run, derivative, _ = _functions(Kernel(function, "forward-ad").key, a.dtype)
        rows = _rows(count)
        with _device_of(a):
            _template().gated_backward_kernel[(-(-count // (8 * rows)),)](
                grad, a, b, da, db, (0.0,), count, FORWARD=run, DERIVATIVE=derivative, ROWS=rows, num_warps=WARPS
            )
    return da, db


def fused_forward(x: Tensor, key: str, slopes: bool) -> list[Tensor]:
    """The results of an emitted function, and its slopes where they are asked for, of a contiguous tensor there."""
    made = [torch.empty_like(x) for _ in range(find(key).count * (2 if slopes else 1))]
    if count := x.numel():
        element = module_of(key, "triton", str(x.dtype).removeprefix("torch.")).element
        rows = _rows(count)
        with _device_of(x):
            _template().fused_forward_kernel[(-(-count // (8 * rows)),)](
                x, tuple(made), count, ELEMENT=element, COUNT=len(made), ROWS=rows, num_warps=WARPS
            )
    return made


def fused_backward(grads: Sequence[Tensor], slopes: Sequence[Tensor]) -> Tensor:
    """The sum of grad * slope, of contiguous tensors there."""
    dx = torch.empty_like(slopes[0])
    if count := dx.numel():
        rows = _rows(count)
        with _device_of(dx):
            _template().fused_backward_kernel[(-(-count // (8 * rows)),)](
                tuple(grads), tuple(slopes), dx, count, COUNT=len(slopes), ROWS=rows, num_warps=WARPS
            )
    return dx


def _device_of(tensor: Tensor) -> Any:
    """The tensor's GPU as the current one: Triton launches there. A CPU tensor changes nothing."""
    return torch.cuda.device_of(tensor)
