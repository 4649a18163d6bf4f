"""approximate-activations: what a batch norm normalises is saved in few bits, on a fixed range of standard deviations.

Chakrabarti and Moseley, Backprop with Approximate Activations for Memory-efficient Network Training (2019). The paper
lays its codes (eq. 9) about the shift, so that they tell the side of a ReLU behind it; but where a scale is 0 its
gradients are NaN, and where a shift is 3 scales or more they are wrong. These codes lie about the mean, whatever scale
and shift are, and the side of a ReLU takes one bit more.
"""

from functools import cache
from math import exp, pi, sqrt
from statistics import NormalDist
from typing import ClassVar

from actfit.kernels.methods.every_tensor import EveryTensor


class ApproximateActivations(EveryTensor):
    """As `EveryTensor`, but for the inputs of batch norms."""

    name: ClassVar[str] = "approximate-activations"
    on_fixed_range: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"{self.name}-{self.bits}"


def reach(bits: int) -> float:
    """The end of the fixed range, in standard deviations.

    For numbers from N(0, 1) the best is 2.7 for 4 bits and 3.9 for 8 (Max 1960); numbers in networks lie further out,
    and cutting them off costs more than finer steps gain.
    """
    return 1.0 + bits / 2


def step(bits: int) -> float:
    """The difference between the values of neighbouring codes, in standard deviations."""
    return 2 * reach(bits) / (1 << bits)


@cache
def shrinkage(bits: int) -> float:
    """E[x q(x)] for x from N(0, 1), by which the values q of codes are divided.

    Each border b of q, where it rises by a step, adds step * E[x; x > b] = step * phi(b), phi the density of N(0, 1).
    So the regression of q / shrinkage on x has slope 1, and the mean of a gain's gradient is right: without the
    division it is too small by 12 % at 2 bits, .5 % at 4 and 6e-7 at 8, mostly as values beyond the ends are clamped.
    """
    half = (1 << bits) // 2
    borders = (step(bits) * place for place in range(1 - half, half))
    return step(bits) * sum(exp(-border * border / 2) for border in borders) / sqrt(2 * pi)


@cache
def fixed_range_error(bits: int) -> float:
    """The root mean square error of decoded values for x from N(0, 1): sqrt(E[q**2] / shrinkage**2 - 1)."""
    normal, half = NormalDist(), (1 << bits) // 2
    below = [0.0, *(normal.cdf(step(bits) * place) for place in range(1 - half, half)), 1.0]
    squares = [(step(bits) * (place + 0.5 - half)) ** 2 for place in range(2 * half)]
    second = sum(square * (high - low) for square, low, high in zip(squares, below, below[1:], strict=False))
    return sqrt(second / shrinkage(bits) ** 2 - 1)
