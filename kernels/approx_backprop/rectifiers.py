"""ReLU and leaky ReLU, which keep one bit: whether the input is above 0. Their gradient is exact."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import kernels.approx_backprop.ops  # noqa: F401 - registers the ops
from kernels.approx_backprop.codes import above
from kernels.approx_backprop.copies import Form, Kept, along, attach
from kernels.approx_backprop.how import How
from kernels.autograd import in_memory_order, once


class Rectify(torch.autograd.Function):
    """x above 0, slope * x elsewhere, of a contiguous x; what `once` needs; a bit plane."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> tuple[Tensor, Tensor, Tensor]:
        ctx.slope, tie = slope, x.new_empty(0)
        y, signs = torch.ops.actfit.rectify(x, slope)
        ctx.mark_non_differentiable(signs)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(tie, signs)
        return y, tie, signs

    @staticmethod
    def label(x: Tensor, slope: float, *_: Any) -> str:
        """How it goes by where bytes are counted."""
        return f"{'leaky_relu' if slope else 'relu'}, approx-backprop"

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, None]:
        if grad is None:
            return None, None
        tie, signs = ctx.saved_tensors
        return once(torch.ops.actfit.rectify_backward(grad.contiguous(), signs, ctx.slope), tie), None


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
    if copy is None:
        return in_memory_order(lambda rows: Rectify.apply(rows, slope)[0], x)
    layout = copy.form.layout  # in whose order the codes are
    y, _, signs = Rectify.apply(layout.flat(x), slope)
    return attach(layout.whole(y), copy.rectified(slope, signs))
