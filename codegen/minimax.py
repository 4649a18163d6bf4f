"""Polynomials for the primitives: the best relative fit of a function on an interval, by Remez exchange.

Everything runs in mpmath at 40 digits, so the coefficients are the same on every machine.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np

_DIGITS = 40
_GRID = 60  # points between two neighbours of the reference
_ROUNDS = 30
_LEVEL = 1e-4  # relative difference of the extremes at which the exchange has converged


def polynomial(function: Callable[[Any], Any], lo: float, hi: float, tolerance: float) -> tuple[float, ...]:
    """Coefficients c0, c1, ... (float32 numbers) of the lowest degree with |p/f - 1| <= tolerance on [lo, hi].

    `function` takes and gives mpmath numbers, and has no zero on the interval.
    Raises `ArithmeticError` where no degree up to 24 will do.
    """
    with mpmath.workdps(_DIGITS):
        for degree in range(1, 25):
            coefficients, error = _remez(function, mpmath.mpf(lo), mpmath.mpf(hi), degree)
            if error <= tolerance:
                return tuple(float(np.float32(float(c))) for c in coefficients)
    raise ArithmeticError(f"no polynomial of degree 24 is within {tolerance} on [{lo}, {hi}]")


def _remez(function: Callable[[Any], Any], lo: Any, hi: Any, degree: int) -> tuple[list[Any], Any]:
    """The best polynomial of a degree, and its largest relative error."""
    count = degree + 2
    points = [(lo + hi) / 2 - (hi - lo) / 2 * mpmath.cos(mpmath.pi * i / (count - 1)) for i in range(count)]
    for _ in range(_ROUNDS):
        coefficients, level = _level(function, points)
        points, errors = _extremes(function, coefficients, lo, hi, points)
        if max(errors) - abs(level) <= _LEVEL * max(errors):
            break
    return coefficients, max(errors)


def _level(function: Callable[[Any], Any], points: list[Any]) -> tuple[list[Any], Any]:
    """The polynomial whose relative error is ±level, by turns, at the points."""
    rows = [
        [point**k / function(point) for k in range(len(points) - 1)] + [mpmath.mpf(-1) ** i]
        for i, point in enumerate(points)
    ]
    solution = list(mpmath.lu_solve(mpmath.matrix(rows), mpmath.matrix([1] * len(points))))
    return solution[:-1], solution[-1]


def _extremes(
    function: Callable[[Any], Any], coefficients: list[Any], lo: Any, hi: Any, points: list[Any]
) -> tuple[list[Any], list[Any]]:
    """The points where the error is largest between neighbouring zeros of it, and its sizes there."""

    def error(at: Any) -> Any:
        return mpmath.polyval(coefficients[::-1], at) / function(at) - 1

    grid = [a + (b - a) * k / _GRID for a, b in pairwise(points) for k in range(_GRID)] + [points[-1]]
    grid = sorted({lo, hi, *grid})
    values = [error(at) for at in grid]
    extremes: list[tuple[Any, Any]] = []
    for at, value in zip(grid, values, strict=True):
        if extremes and (value > 0) == (extremes[-1][1] > 0):
            if abs(value) > abs(extremes[-1][1]):
                extremes[-1] = (at, value)
        else:
            extremes.append((at, value))
    while len(extremes) > len(points):  # more extremes than needed: drop the smaller of the first and the last
        extremes.pop(0 if abs(extremes[0][1]) < abs(extremes[-1][1]) else -1)
    if len(extremes) < len(points):
        return points, [max(map(abs, values))] * len(points)
    return [at for at, _ in extremes], [abs(value) for _, value in extremes]
