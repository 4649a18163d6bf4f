"""ReLU and leaky ReLU, which save one bit: whether the input is above 0. Their gradient is exact."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import kernels.engine.ops  # noqa: F401 - registers the ops
from kernels.approx_backprop.attached import attach_code, attached_code
from kernels.approx_backprop.encoding import Encoded, Encoding, above
from kernels.autograd import in_memory_order, once_differentiable
from kernels.methods.compressed import Compressed
from kernels.methods.method import SavedBy


class Rectify(torch.autograd.Function):
    """x above 0, slope * x elsewhere, of a contiguous x; an anchor; a bit plane."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> tuple[Tensor, Tensor, Tensor]:
        ctx.slope, anchor = slope, x.new_empty(0)
        y, signs = torch.ops.actfit.rectify(x, slope)
        ctx.mark_non_differentiable(signs)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(anchor, signs)
        return y, anchor, signs

    @staticmethod
    def saved_by(x: Tensor, slope: float, *_: Any) -> SavedBy:
        """For the recorder of memory."""
        return SavedBy("leaky_relu" if slope else "relu", Compressed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, None]:
        if grad is None:
            return None, None
        anchor, signs = ctx.saved_tensors
        return once_differentiable(torch.ops.actfit.rectify_backward(grad.contiguous(), signs, ctx.slope), anchor), None


class RectifyKnown(torch.autograd.Function):
    """The same for a tensor whose attached code determines the sign; it saves that code."""

    saved_by = Rectify.saved_by

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, slope: float, encoding: Encoding, *encoded: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.slope, ctx.encoding, anchor = slope, encoding, x.new_empty(0)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(anchor, *encoded)
        return F.leaky_relu(x, slope) if slope else F.relu(x), anchor

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        nothing = (None,) * (len(ctx.saved_tensors) + 1)
        if grad is None:
            return None, *nothing
        anchor, *encoded = ctx.saved_tensors
        dx = torch.where(above(ctx.encoding, Encoded(*encoded)), grad, grad * ctx.slope if ctx.slope else 0)
        return once_differentiable(dx, anchor), *nothing


def rectify(x: Tensor, slope: float, method: Compressed) -> Tensor:
    """F.relu(x), or F.leaky_relu(x, slope), with a code attached if x has one."""
    code = attached_code(x, method)
    if code is not None and code.encoding.slope is not None:  # x is rectified already
        code = None
    if code is not None and code.encoding.tells_sign:
        y, _ = RectifyKnown.apply(x, slope, code.encoding, *code.encoded)
        return attach_code(y, code.rectified(slope, None))
    if code is None:
        return in_memory_order(lambda rows: Rectify.apply(rows, slope)[0], x)
    layout = code.encoding.layout  # the codes are in its order
    y, _, signs = Rectify.apply(layout.flat(x), slope)
    return attach_code(layout.whole(y), code.rectified(slope, signs))
