"""The expected error of a code for normally distributed values, without running anything."""

from functools import cache
from statistics import NormalDist

REACH, SPACING = 8.0, 0.125  # of the points of the quadrature: standard deviations


def expected_error(bits: int, group: int, rounding: str) -> float:
    """The root mean square error of decoded values over that of the values, sqrt(E[R²] / 12) / (2**bits - 1).

    Values are assumed to be normally distributed, with mean 0 and one variance in a group, and rounding errors to be
    uniform within half a step to each side, a step being the range R of the group over 2**bits - 1. The error of
    stochastic rounding has a variance of step² / 6 instead of step² / 12. The rounding of minima and steps to bfloat16,
    and the almost exact ends of a group, change this by less than 4 %; a tensor of bfloat16 rounds the result, too.
    """
    variance = squared_range(group) / (12 if rounding == "nearest" else 6)
    return float(variance**0.5 / ((1 << bits) - 1))


@cache
def squared_range(count: int) -> float:
    """E[R²] of `count` standard normal numbers: 22.4 for 64.

    Smallest x and largest y have the density n (n - 1) p(x) p(y) (P(y) - P(x))^(n - 2), which is smooth and soon 0 on
    all sides for n of 32 and more, so that the trapezoidal rule is exact to 1e-9 at this spacing.
    """
    normal, points = NormalDist(), int(2 * REACH / SPACING) + 1
    values = [SPACING * place - REACH for place in range(points)]
    density, below = [normal.pdf(x) for x in values], [normal.cdf(x) for x in values]
    total = sum(
        density[x] * density[y] * (below[y] - below[x]) ** (count - 2) * (values[y] - values[x]) ** 2
        for y in range(points)
        for x in range(y)
    )
    return count * (count - 1) * SPACING**2 * total
