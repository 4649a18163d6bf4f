"""ReLU and leaky ReLU, which keep one bit: whether the input is above 0. Their gradient is exact."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import kernels.approx_backprop.ops  # noqa: F401 - registers the ops
from kernels.approx_backprop.codes import above
from kernels.approx_backprop.copies import Form, Kept, Layout, along, attach
from kernels.approx_backprop.how import How
from kernels.autograd import once


class Rectify(torch.autograd.Function):
    """x above 0, slope * x elsewhere; what `once` needs; a bit plane."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> tuple[Tensor, Tensor, Tensor]:
        ctx.layout, ctx.slope, tie = Layout.of(x), slope, x.new_empty(0)
        y, signs = torch.ops.actfit.rectify(ctx.layout.flat(x), slope)
        ctx.mark_non_differentiable(signs)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(tie, signs)
        return ctx.layout.whole(y), tie, signs

    @staticmethod
    def label(x: Tensor, slope: float, *_: Any) -> str:
        """How it goes by where bytes are counted."""
        return f"{'leaky_relu' if slope else 'relu'}, approx-backprop"

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, None]:
        if grad is None:
            return None, None
        tie, signs = ctx.saved_tensors
        flat = torch.ops.actfit.rectify_backward(ctx.layout.flat(grad), signs, ctx.slope)
        return once(ctx.layout.whole(flat), tie), None


class RectifyKnown(torch.autograd.Function):
    """The same of a tensor whose copy tells the sign: that is what is kept."""

    label = Rectify.label

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float, form: Form, *kept: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.slope, ctx.form, tie = slope, form, x.new_empty(0)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(tie, *kept)
        return F.leaky_relu(x, slope) if slope else F.relu(x), tie

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        nothing = (None,) * (len(ctx.saved_tensors) + 1)
        if grad is None:
            return None, *nothing
        tie, *kept = ctx.saved_tensors
        dx = torch.where(above(ctx.form, Kept(*kept)), grad, grad * ctx.slope if ctx.slope else 0)
        return once(dx, tie), *nothing


def rectify(x: Tensor, slope: float, how: How) -> Tensor:
    """F.relu(x), or F.leaky_relu(x, slope); a copy goes along if one came along with x."""
    copy = along(x, how)
    if copy is not None and copy.form.slope is not None:  # of what is rectified already
        copy = None
    if copy is not None and copy.form.tells_sign:
        y, _ = RectifyKnown.apply(x, slope, copy.form, *copy.kept)
        return attach(y, copy.rectified(slope, None))
    y, _, signs = Rectify.apply(x, slope)
    return y if copy is None else attach(y, copy.rectified(slope, signs))
