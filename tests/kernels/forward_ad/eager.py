"""A block, and a comparison of programs with the mode and without."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from kernels.forward_ad import nested_forward_ad
from tests.kernels.forward_ad.chains import Activation, mish

ROWS, WIDTH, CHANNELS, SIDE = 64, 64, 8, 32


class Block(nn.Module):
    """linear - function - linear, or conv - norm - function - conv."""

    def __init__(self, function: Activation, convolutional: bool = False) -> None:
        super().__init__()
        self.function = function
        if convolutional:
            conv = partial(nn.Conv2d, CHANNELS, CHANNELS, 3, padding=1, bias=False)
            self.first: nn.Module = nn.Sequential(conv(), nn.BatchNorm2d(CHANNELS))
            self.last: nn.Module = conv()
        else:
            self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.function(self.first(x)))
        return y


def batch(convolutional: bool = False) -> Tensor:
    shape = (4, CHANNELS, SIDE, SIDE) if convolutional else (ROWS, WIDTH)
    return torch.randn(shape, requires_grad=True)


def leaves(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes, scales = ((8, 16), (16, 16), (16, 16)), (1.0, 0.25, 0.25)
    drawn = [
        torch.randn(shape, generator=generator, dtype=dtype) * by for shape, by in zip(shapes, scales, strict=True)
    ]
    x, w, v = (leaf.requires_grad_() for leaf in drawn)
    return x, w, v


def gradients(
    program: Callable[..., Tensor], mode: AbstractContextManager[object], dtype: torch.dtype = torch.float64
) -> tuple[Tensor, list[Tensor | None]]:
    """The loss, and the gradients of the three leaves."""
    x, w, v = leaves(dtype)
    torch.manual_seed(1)
    with mode:
        loss = program(x, w, v, mish)
    loss.backward()
    return loss.detach(), [x.grad, w.grad, v.grad]


def mode() -> nested_forward_ad:
    return nested_forward_ad(min_numel=1)


def assert_same(program: Callable[..., Tensor], tolerance: float = 1e-12, dtype: torch.dtype = torch.float64) -> None:
    """Sums of at most 16 products of a dozen factors, in float64: 2^-53 · 200 is 2e-14 of the largest."""
    loss, plain = gradients(program, nullcontext(), dtype)
    nested_loss, nested = gradients(program, mode(), dtype)
    assert torch.equal(loss, nested_loss)
    for gradient, plain_gradient in zip(nested, plain, strict=True):
        assert (gradient is None) == (plain_gradient is None)
        if gradient is not None and plain_gradient is not None:
            assert (gradient - plain_gradient).abs().max() <= tolerance * plain_gradient.abs().max().clamp_min(1.0)
