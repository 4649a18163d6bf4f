"""The one autograd.Function."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels import ops
from kernels.errors import KernelError
from kernels.kernel import parse

_CHANGED = (
    "the output of an activation with method={method!r} was changed in place, and backward needs it; write"
    " out = out + other instead of out += other, or use method='fewbit', which does not need the output"
)


class Elementwise(torch.autograd.Function):
    """y = f(x); keeps for backward what the kernel's method says, and nothing else."""

    @staticmethod
    def forward(x: Tensor, kernel: str, params: Sequence[float]) -> tuple[Tensor, Tensor]:
        y, saved = torch.ops.actfit.forward(x, kernel, params)
        return y, saved

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, str, Sequence[float]], output: tuple[Tensor, Tensor]) -> None:
        _, ctx.kernel, ctx.params = inputs
        y, saved = output
        ctx.mark_non_differentiable(saved)
        ctx.set_materialize_grads(False)
        if parse(ctx.kernel).keeps_output:
            ctx.save_for_backward(y, saved)
        else:
            ctx.save_for_backward(saved)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, None, None]:
        if grad is None:
            return None, None, None
        *y, saved = _saved(ctx)
        dx = torch.ops.actfit.backward(grad.contiguous(), y[0] if y else None, saved, ctx.kernel, ctx.params)
        return dx, None, None


def _saved(ctx: Any) -> tuple[Tensor, ...]:
    if torch.compiler.is_compiling():
        return tuple(ctx.saved_tensors)
    try:
        return tuple(ctx.saved_tensors)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        hint = _CHANGED.format(method=parse(ctx.kernel).method)
        raise RuntimeError(f"{error}\nactfit: {hint}") from None


def elementwise(x: Tensor, kernel: str, params: Sequence[float]) -> Tensor:
    """f(x) of any strides, laid out as x is; differentiable once."""
    if x.is_contiguous():
        y, _ = Elementwise.apply(x, kernel, list(params))
        return y
    # In the order of memory x is contiguous, or becomes so: a dimension with larger strides comes first.
    order = sorted(range(x.dim()), key=lambda dim: x.stride(dim), reverse=True)
    y, _ = Elementwise.apply(x.permute(order).contiguous(), kernel, list(params))
    back = [order.index(dim) for dim in range(x.dim())]
    return y.permute(back)


_ = (ops, KernelError)
