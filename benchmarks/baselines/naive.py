"""Naive quantisation, the baseline of Chakrabarti and Moseley (2019): forward continues with the rounded values.

A batch norm's result a is rounded to the middle of one of 2^K even steps over 3 deviations to either side of the norm's
bias (their eq. 9 and 10); the ReLU and the convolution get the rounded a. Backward treats rounding as the identity. The
paper tests such a net without rounding, unlike its training; `quantised` tests it with rounding.

Everything is computed in the tensor's dtype: this shows what such a training learns, and saves no memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

DEVIATIONS = 6  # the width of all steps together


class NaiveNorm(nn.BatchNorm2d):
    """A batch norm whose result is rounded in training, and in testing if `rounds`."""

    def __init__(self, channels: int, bits: int) -> None:
        super().__init__(channels)
        self.bits, self.rounds = bits, False

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)
        if not (self.training or self.rounds):
            return y
        rounded: Tensor = Rounded.apply(y, self.weight, self.bias, self.bits)
        return rounded


class Rounded(torch.autograd.Function):
    """`rounded`, whose gradient is that of the identity."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, gain: Tensor, bias: Tensor, bits: int) -> Tensor:
        return rounded(a, gain, bias, bits)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return grad, None, None, None


def rounded(a: Tensor, gain: Tensor, bias: Tensor, bits: int) -> Tensor:
    """a [n, channels, ...] rounded to the middles of steps; for a gain of 0 the only step has width 0, at the bias."""
    gain, bias = (vector.view(1, -1, *[1] * (a.dim() - 2)) for vector in (gain, bias))
    step = DEVIATIONS / 2**bits * gain
    scale = torch.where(step == 0, 0, 1 / step)
    half = 2 ** (bits - 1)
    place = torch.floor(bias * scale)  # of the bias, counted from 0; its code is half
    codes = (torch.floor(a * scale) + half - place).clamp(0, 2 * half - 1)
    values = (codes + 0.5 - half + place) * step
    return torch.where(step == 0, bias, values).to(a.dtype)


@contextmanager
def quantised(model: nn.Module) -> Iterator[bool]:
    """A context in which the NaiveNorms round in testing too; yields whether there are any."""
    norms = [module for module in model.modules() if isinstance(module, NaiveNorm)]
    for module in norms:
        module.rounds = True
    try:
        yield bool(norms)
    finally:
        for module in norms:
            module.rounds = False
