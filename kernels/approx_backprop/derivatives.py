"""Smooth functions that keep f'(x) by groups in K bits: for what no few-bit table serves.

A table of K levels is made for numbers of one scale. Where f' has no bound, as 2x of relu(x)², no table serves every x:
levels end somewhere, and beyond it gradients are wrong by any factor. A minimum and a step of each group follow the
numbers, whatever they are, so f'(x) is off by half a step of its own group at most, with any function and parameters.
"""

from typing import Any

import torch
from torch import Tensor

from kernels.approx_backprop.codes import affordable, grouped, restored
from kernels.approx_backprop.copies import Form, Kept, Layout
from kernels.approx_backprop.how import How
from kernels.autograd import in_memory_order, once
from kernels.kernel import Kernel


class Derivative(torch.autograd.Function):
    """f(x) of a contiguous x by a kernel of forward-ad; what `once` needs; the codes of f'(x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: str, params: list[float], form: Form) -> tuple[Tensor, ...]:
        y, derivative = torch.ops.actfit.forward(x, kernel, params)
        exact = form.how.scheme == "fused"
        codes = (derivative,) if exact else grouped(derivative, form.how, form.layout)
        ctx.form, tie = form, x.new_empty(0)
        ctx.mark_non_differentiable(*codes)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(tie, *codes)
        return y, tie, *codes

    @staticmethod
    def label(x: Tensor, kernel: str, *_: Any) -> str:
        """How it goes by where bytes are counted."""
        return f"{kernel.partition('|')[0]}, approx-backprop"

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, None, None, None]:
        if grad is None:
            return None, None, None, None
        tie, *codes = ctx.saved_tensors
        return once(grad * restored(ctx.form, Kept(*codes)), tie), None, None, None


def approximate_derivative(function: str, params: list[float], x: Tensor, how: How) -> Tensor:
    """f(x), laid out as x is; f'(x) is kept as `how` says. The second dimension of images is channels; else the last.

    params: the function's, in the catalogue's order.
    """
    key = Kernel(function, "forward-ad").key
    images = x.dim() in (4, 5) and x.is_contiguous()

    def run(rows: Tensor) -> Tensor:
        flat = rows if rows.dim() > 1 else rows.reshape(-1, 1)
        layout = Layout.of(flat) if images else Layout.of_rows(flat)
        form = Form(affordable(flat, how, layout), layout, flat.dtype)
        y: Tensor = Derivative.apply(flat, key, params, form)[0]
        return y.view(rows.shape)

    return in_memory_order(run, x)
