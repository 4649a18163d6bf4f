"""Smooth functions that save f'(x) in K bits by groups, for functions without a few-bit table.

A table of K levels covers a fixed range. Where f' is unbounded, as 2x of relu(x)², no table serves every x: beyond the
last level, gradients are wrong by any factor. A minimum and a scale for each group follow the numbers, so f'(x) is off
by at most half the scale of its group, for any function and parameters.
"""

from typing import Any

import torch
from torch import Tensor

from kernels.approx_backprop.encoding import Encoded, Encoding, affordable, grouped, restored
from kernels.approx_backprop.memory_layout import MemoryLayout
from kernels.autograd import in_memory_order, once_differentiable
from kernels.engine.elements import EXACT_KERNELS
from kernels.methods.compressed import Compressed
from kernels.methods.method import SavedBy, spec_of


class Derivative(torch.autograd.Function):
    """Returns f(x) for a contiguous x, by a kernel of forward-ad; an anchor; the codes of f'(x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: str, params: list[float], encoding: Encoding) -> tuple[Tensor, ...]:
        y, derivative = torch.ops.actfit.forward(x, kernel, params)
        exact = encoding.method.exact
        codes = (derivative,) if exact else grouped(derivative, encoding.method, encoding.layout)
        ctx.encoding, anchor = encoding, x.new_empty(0)
        ctx.mark_non_differentiable(*codes)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(anchor, *codes)
        return y, anchor, *codes

    @staticmethod
    def saved_by(x: Tensor, kernel: str, *_: Any) -> SavedBy:
        """For the recorder of memory."""
        return SavedBy(spec_of(kernel).function.name, Compressed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, None, None, None]:
        if grad is None:
            return None, None, None, None
        anchor, *codes = ctx.saved_tensors
        return once_differentiable(grad * restored(ctx.encoding, Encoded(*codes)), anchor), None, None, None


def approximate_derivative(function: str, params: list[float], x: Tensor, method: Compressed) -> Tensor:
    """f(x), laid out as x is; f'(x) is saved in few bits. The second dimension of images is channels; else the last.

    Parameters
    ----------
    function, params
        A name of the catalogue, and its parameters in the catalogue's order.
    x, method
        The input, and the method that saves f'(x).
    """
    images = x.dim() in (4, 5) and x.is_contiguous()

    def run(rows: Tensor) -> Tensor:
        flat = rows if rows.dim() > 1 else rows.reshape(-1, 1)
        layout = MemoryLayout.of(flat) if images else MemoryLayout.of_rows(flat)
        encoding = Encoding(affordable(flat, method, layout), layout, flat.dtype)
        y: Tensor = Derivative.apply(flat, EXACT_KERNELS[function], params, encoding)[0]
        return y.view(rows.shape)

    return in_memory_order(run, x)
