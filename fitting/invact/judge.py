"""The errors of formulas: over every output that is stored, in float32 arithmetic, and beyond."""

import math
from dataclasses import dataclass

import numpy as np

from fitting.activations.tape import Array
from fitting.invact.branches import Side
from fitting.invact.candidate import Formula
from fitting.invact.exact import slope_of_output
from fitting.invact.floor import Cells, Floor

NEXT = 2048  # numbers next to f(T) that are judged one by one
SPREAD = 20_000  # further ones
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
        self._side = chosen = floor.split.sides[side]
        self.outputs = self.cells.y if floor.format.precision <= 16 else _float32_outputs(chosen)
        self.g = slope_of_output(chosen, self.outputs)

    def of_g(self) -> Score:
        """The score of g itself."""
        return self._score(slope_of_output(self._side, self.cells.y), self.g)

    def __call__(self, formula: Formula) -> Score:
        found = (formula.float32(y).astype(np.float64) for y in (self.cells.y, self.outputs))
        return self._score(*found)

    def _score(self, found: Array, at_outputs: Array) -> Score:
        cells = self.cells
        total = np.abs(found - cells.middle) + cells.half
        square = float(cells.mass @ (found - cells.mean) ** 2)
        pointwise = np.abs(at_outputs - self.g)
        if not (np.isfinite(total).all() and np.isfinite(pointwise).all()):
            return Score(math.inf, math.inf, math.nan, math.inf)
        at = int(np.argmax(total))
        return Score(square, float(total[at]), float(cells.y[at]), float(pointwise.max()))


def _float32_outputs(side: Side) -> Array:
    low, high = side.range
    form = np.float32
    points = [np.geomspace(1e-30, FAR, SPREAD // 4), -np.geomspace(1e-30, FAR, SPREAD // 4), np.zeros(1)]
    for end in (low, high):
        if math.isfinite(end):
            first, towards = form(end), form(-FAR if end == high else FAR)
            near = [first]
            for _ in range(NEXT):
                near.append(np.nextafter(near[-1], towards))
            points += [np.array(near, dtype=np.float64), end + np.geomspace(1e-12, 60.0, SPREAD // 4)]
            points += [end - np.geomspace(1e-12, 60.0, SPREAD // 4)]
    y = np.unique(np.concatenate(points).astype(form).astype(np.float64))
    return y[(low <= y) & (y <= high)]
