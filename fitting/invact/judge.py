"""The errors of formulas: over every output that is stored, or a million of them, in float32 arithmetic."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fitting.activations.tape import Array
from fitting.invact.branches import Side
from fitting.invact.candidate import Formula
from fitting.invact.exact import slope_of_output
from fitting.invact.floor import Cells, Floor

NEXT = 2048  # numbers next to f(T) that are judged one by one
SPREAD = 60_000  # further ones, of every candidate
MANY = 2_000_000  # and of those that are good enough
MOVES = 30.0  # size of y beyond which g hardly moves
FAR = 3e38


@dataclass(frozen=True)
class Score:
    """Errors of one formula on its side.

    `square`: its part of the mean square of q - E[f' | y]. `linf`: the largest |q - f'(x)|, at the output
    `linf_at`, over all x. `pointwise`: the largest |q - g(y)| at outputs that are stored. All in float32.
    """

    square: float
    linf: float
    linf_at: float
    pointwise: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.linf) and math.isfinite(self.pointwise)


class Judge:
    """Judges formulas on one side, whose stored outputs and exact g it keeps."""

    def __init__(self, side: int, floor: Floor) -> None:
        self.cells: Cells = floor.cells[side]
        self._side = floor.split.sides[side]
        self._counted = floor.format.precision <= 16
        self.outputs = self.cells.y if self._counted else float32_outputs(self._side, SPREAD)
        self.g = slope_of_output(self._side, self.outputs)

    @cached_property
    def _many(self) -> tuple[Array, Array]:
        y = self.outputs if self._counted else float32_outputs(self._side, MANY)
        return y, slope_of_output(self._side, y)

    def of_g(self) -> Score:
        """The score of g itself."""
        return self._score(slope_of_output(self._side, self.cells.y), self.g)

    def at_many(self, formula: Formula) -> float:
        """The largest |q - g| at a million stored outputs and more; at all of them in a 16-bit format."""
        y, g = self._many
        return float(np.abs(formula.float32(y).astype(np.float64) - g).max())

    def __call__(self, formula: Formula) -> Score:
        found = (formula.float32(y).astype(np.float64) for y in (self.cells.y, self.outputs))
        return self._score(*found)

    def _score(self, found: Array, at_outputs: Array) -> Score:
        cells = self.cells
        with np.errstate(all="ignore"):  # what is not finite is found so below
            total = np.abs(found - cells.middle) + cells.half
            square = float(np.sum(cells.mass * (found - cells.mean) ** 2))
            pointwise = np.abs(at_outputs - self.g)
        if not (np.isfinite(total).all() and np.isfinite(pointwise).all() and math.isfinite(square)):
            return Score(math.inf, math.inf, math.nan, math.inf)
        at = int(np.argmax(total))
        return Score(square, float(total[at]), float(cells.y[at]), float(pointwise.max()))


def float32_outputs(side: Side, count: int) -> Array:
    """About `count` float32 numbers of the side's range, as float64, increasing.

    Next to finite ends one by one, a little beyond them too; even in y as far as g moves, where rounding is largest;
    geometric towards 0 and the ends.
    """
    low, high = side.range
    away = np.geomspace(1e-30, FAR, count // 8)
    points = [away, -away, np.zeros(1), np.linspace(max(low, -MOVES), min(high, MOVES), count // 2)]
    for end, inward in ((low, 1.0), (high, -1.0)):
        if math.isfinite(end):
            step = float(np.spacing(np.float32(max(abs(end), 1e-30))))
            points += [float(np.float32(end)) + inward * step * np.arange(-2.0, NEXT)]
            points += [end + inward * np.geomspace(1e-12, 60.0, count // 8)]
    y = np.unique(np.concatenate(points).astype(np.float32).astype(np.float64))
    first = low - 4e-7 * abs(low) if math.isfinite(low) else low
    last = high + 4e-7 * abs(high) if math.isfinite(high) else high
    return y[(first <= y) & (y <= last)]
