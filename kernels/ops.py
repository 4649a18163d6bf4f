"""The ops that all functions and methods go through: actfit::forward and backward, gated and gated_backward, and
fused_forward and fused_backward of functions that users write.

As ops of torch.library, with fake implementations, they are what torch.compile sees: it neither looks inside nor
computes them again, so what forward saves is what is kept.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from kernels import launch, reference
from kernels.emitted import find
from kernels.errors import KernelError, shown
from kernels.kernel import parse


def backend(device: torch.device | str | None = None) -> str:
    """Which code runs tensors of a device: "triton", "triton interpreter" or "torch". Default: CUDA if there is one."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if not isinstance(device, str | torch.device):
        raise KernelError(f"device must be a torch.device or its name, got {shown(device)}")
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise KernelError(
            f"device must be one that torch knows, such as 'cpu' or 'cuda:0', got {shown(device)}"
        ) from None
    if kind not in ("cuda", "cpu") or not _triton_is_there():
        return "torch"
    if launch.interpreting():
        return "triton interpreter"
    return "triton" if kind == "cuda" else "torch"


@cache
def _triton_is_there() -> bool:
    return find_spec("triton") is not None


def runs_triton(tensor: Tensor) -> bool:
    """Whether the Triton kernels take it: not float64, which they do not compute in."""
    return tensor.dtype != torch.float64 and backend(tensor.device) != "torch"


def _ordered(x: Tensor, order: Sequence[int]) -> Tensor:
    return x.permute(*order) if order else x


def _forward(x: Tensor, kernel: str, params: Sequence[float], order: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    if runs_triton(x):
        return launch.forward(parse(kernel), _ordered(x, order).contiguous(), params)
    return reference.forward(parse(kernel), x, params, order)


def _backward(grad: Tensor, y: Tensor | None, saved: Tensor, kernel: str, params: Sequence[float]) -> Tensor:
    run = launch.backward if runs_triton(grad) else reference.backward
    return run(parse(kernel), grad, y, saved, params)


def _gated(a: Tensor, b: Tensor, function: str) -> Tensor:
    run = launch.gated if runs_triton(a) else reference.gated
    return run(function, a, b)


def _gated_backward(grad: Tensor, a: Tensor, b: Tensor, function: str) -> tuple[Tensor, Tensor]:
    run = launch.gated_backward if runs_triton(a) else reference.gated_backward
    return run(function, grad, a, b)


def _fused_forward(x: Tensor, key: str, slopes: bool) -> list[Tensor]:
    run = launch.fused_forward if runs_triton(x) else reference.fused_forward
    return run(x, key, slopes)


def _fused_backward(grads: Sequence[Tensor], slopes: Sequence[Tensor]) -> Tensor:
    run = launch.fused_backward if runs_triton(slopes[0]) else reference.fused_backward
    return run(grads, slopes)


def _forward_fake(x: Tensor, kernel: str, params: Sequence[float], order: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    y = torch.empty_like(_ordered(x, order), memory_format=torch.contiguous_format)
    return y, parse(kernel).empty(y)


def _backward_fake(grad: Tensor, y: Tensor | None, saved: Tensor, kernel: str, params: Sequence[float]) -> Tensor:
    return torch.empty_like(grad)


def _gated_fake(a: Tensor, b: Tensor, function: str) -> Tensor:
    return torch.empty_like(a)


def _gated_backward_fake(grad: Tensor, a: Tensor, b: Tensor, function: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(a), torch.empty_like(b)


def _fused_forward_fake(x: Tensor, key: str, slopes: bool) -> list[Tensor]:
    return [torch.empty_like(x) for _ in range(find(key).count * (2 if slopes else 1))]


def _fused_backward_fake(grads: Sequence[Tensor], slopes: Sequence[Tensor]) -> Tensor:
    return torch.empty_like(slopes[0])


Op = tuple[str, Callable[..., Any], Callable[..., Any]]
_OPS: dict[str, Op] = {
    "forward": (
        "(Tensor x, str kernel, float[] params, int[] order=[]) -> (Tensor, Tensor)", _forward, _forward_fake
    ),
    "backward": (
        "(Tensor grad, Tensor? y, Tensor saved, str kernel, float[] params) -> Tensor", _backward, _backward_fake
    ),
    "gated": ("(Tensor a, Tensor b, str function) -> Tensor", _gated, _gated_fake),
    "gated_backward": (
        "(Tensor grad, Tensor a, Tensor b, str function) -> (Tensor, Tensor)", _gated_backward, _gated_backward_fake
    ),
    "fused_forward": ("(Tensor x, str key, bool slopes) -> Tensor[]", _fused_forward, _fused_forward_fake),
    "fused_backward": ("(Tensor[] grads, Tensor[] slopes) -> Tensor", _fused_backward, _fused_backward_fake),
}  # fmt: skip

# Kernels take contiguous tensors, or strides that decide bits: Inductor must not lay them out as it likes.
_CONTIGUOUS = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)


def register(ops: Mapping[str, Op]) -> None:
    """Define actfit's ops: of each name a schema, what runs, and what says which tensors come of it."""
    for name, (schema, run, fake) in ops.items():
        torch.library.define(f"actfit::{name}", schema, tags=_CONTIGUOUS)
        torch.library.impl(f"actfit::{name}", "CompositeExplicitAutograd", run)
        torch.library.register_fake(f"actfit::{name}", fake)


register(_OPS)
