"""Pooling that saves only the shape of its input; results and gradients are exactly torch's.

torch's mean over a window saves its whole input, though backward needs only the shape. So does its maximum, besides
the indices of the largest elements, 8 bytes each, which take 4 here.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels.approx_backprop.memory_layout import MemoryLayout
from kernels.autograd import once_differentiable
from kernels.methods.compressed import Compressed
from kernels.methods.method import SavedBy

MEANS = (nn.AvgPool2d, nn.AvgPool3d)
POOLS = (*MEANS, nn.AdaptiveAvgPool2d, nn.MaxPool2d)
_aten = torch.ops.aten


class Mean(torch.autograd.Function):
    """F.avg_pool2d or 3d, as the window has dimensions; without a window F.adaptive_avg_pool2d; and an anchor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: tuple[Any, ...], size: Any) -> tuple[Tensor, Tensor]:
        ctx.layout, ctx.window, anchor = MemoryLayout.of(x), window, x.new_empty(0)
        ctx.save_for_backward(anchor)
        if not window:
            return F.adaptive_avg_pool2d(x, size), anchor
        return (F.avg_pool2d if len(window[0]) == 2 else F.avg_pool3d)(x, *window), anchor

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        x, (anchor,) = _like(grad, ctx.layout), ctx.saved_tensors
        if not ctx.window:
            dx = _aten._adaptive_avg_pool2d_backward(grad, x)
        elif len(ctx.window[0]) == 2:
            dx = _aten.avg_pool2d_backward(grad, x, *ctx.window)
        else:
            dx = _aten.avg_pool3d_backward(grad, x, *ctx.window)
        return once_differentiable(dx, anchor), None, None


class Largest(torch.autograd.Function):
    """F.max_pool2d, an anchor, and the indices of the largest elements."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor]:
        y, places = _aten.max_pool2d_with_indices(x, *window)
        ctx.layout, ctx.window, anchor = MemoryLayout.of(x), window, x.new_empty(0)
        if x.shape[-1] * x.shape[-2] < 2**31:
            places = places.to(torch.int32)
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(anchor, places)
        return y, anchor, places

    @staticmethod
    def saved_by(*_: Any) -> SavedBy:
        """For the recorder of memory."""
        return SavedBy("max_pool2d", Compressed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, None]:
        anchor, places = ctx.saved_tensors
        x = _like(grad, ctx.layout)
        dx = _aten.max_pool2d_with_indices_backward(grad, x, *ctx.window, places.to(torch.int64))
        return once_differentiable(dx, anchor), None


def _like(grad: Tensor, layout: MemoryLayout) -> Tensor:
    """A tensor of a layout; its values are not read."""
    if not layout.last:
        return grad.new_empty(()).expand(layout.shape)
    return layout.whole(grad.new_empty(prod(layout.shape)))


def pooled(module: nn.Module, x: Tensor) -> Tensor:
    """The result of a module in POOLS."""
    if isinstance(module, nn.AdaptiveAvgPool2d):
        return Mean.apply(x, (), module.output_size)[0]
    dims = 3 if isinstance(module, nn.AvgPool3d) else 2
    names = ("kernel_size", "stride", "padding")
    sides = [(side,) * dims if isinstance(side, int) else tuple(side) for side in (getattr(module, n) for n in names)]
    if isinstance(module, nn.MaxPool2d):
        dilation = (module.dilation,) * 2 if isinstance(module.dilation, int) else tuple(module.dilation)
        return Largest.apply(x, (*sides, dilation, module.ceil_mode))[0]
    return Mean.apply(x, (*sides, module.ceil_mode, module.count_include_pad, module.divisor_override), None)[0]


def avg_pool2d(
    input: Tensor,
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """`torch.nn.functional.avg_pool2d` with torch's arguments, which saves nothing for backward."""
    arguments = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return pooled(nn.AvgPool2d(*arguments), input)
