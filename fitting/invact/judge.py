"""One judge for all formulas: their errors in float32 arithmetic, and the rule that they must keep."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from actfit.fitting.activations.tape import Array
from actfit.fitting.errors import InputError
from actfit.fitting.invact.branches import Branch
from actfit.fitting.invact.error_floor import Cells, ErrorFloor
from actfit.fitting.invact.exact import derivative_from_output
from actfit.fitting.invact.formula import Candidate

NEXT = 2048  # float32 numbers next to f(T), all of which are judged
SPREAD = 60_000  # further float32 numbers at which every formula is judged
MANY = 2_000_000  # float32 numbers at which a formula that is good enough is judged
MOVES = 30.0  # |y| beyond which g hardly moves
FAR = 3e38  # |y| of the largest outputs that are judged
RMS_SHARE, LINF_SHARE = 0.02, 0.10  # by which the total error may exceed the error floor
RELAXED = f"RMS within {RMS_SHARE:.0%}, largest error within {LINF_SHARE:.0%} of what is possible; the floor is not"
FLOAT32 = 2.0**-20  # the largest error for float32, times the power of two at or below max |g|


@dataclass(frozen=True)
class Score:
    """The errors of one formula on its branch, q being computed in float32."""

    square: float  # the branch's part of the mean square of q - E[f' | y]
    linf: float  # the largest |q - f'(x)| over all x
    linf_at: float  # the output y where it is attained
    pointwise: float  # the largest |q - g(y)| at stored outputs

    @property
    def finite(self) -> bool:
        """Whether q is finite at every output that was judged."""
        return math.isfinite(self.linf) and math.isfinite(self.pointwise)


class Judge:
    """Judges formulas on one branch: holds its stored outputs and the exact g there.

    index: of the branch: 0, or 1 for the right one of two.
    error_floor: the branches and the stored outputs.
    """

    def __init__(self, index: int, error_floor: ErrorFloor) -> None:
        self.cells: Cells = error_floor.cells[index]
        self._branch = error_floor.split.branches[index]
        self._counted = error_floor.format.precision <= 16
        self.outputs = self.cells.y if self._counted else float32_outputs(self._branch, SPREAD)
        self.g = derivative_from_output(self._branch, self.outputs)

    @cached_property
    def _many(self) -> tuple[Array, Array]:
        y = self.outputs if self._counted else float32_outputs(self._branch, MANY)
        return y, derivative_from_output(self._branch, y)

    def of_g(self) -> Score:
        """The score of g itself."""
        return self._score(derivative_from_output(self._branch, self.cells.y), self.g)

    def at_many(self, candidate: Candidate) -> float:
        """The largest |q - g| at a million stored outputs and more; at all of them in a 16-bit format."""
        y, g = self._many
        return float(np.abs(candidate.float32(y).astype(np.float64) - g).max())

    def __call__(self, candidate: Candidate) -> Score:
        """The errors of a formula; infinite ones if it is not finite at every output."""
        return self._score(*(candidate.float32(y).astype(np.float64) for y in (self.cells.y, self.outputs)))

    def _score(self, at_cells: Array, at_outputs: Array) -> Score:
        cells = self.cells
        with np.errstate(all="ignore"):  # the test below sees what is not finite
            total = np.abs(at_cells - cells.middle) + cells.half
            square = float(np.sum(cells.mass * (at_cells - cells.mean) ** 2))
            pointwise = np.abs(at_outputs - self.g)
        if not (np.isfinite(total).all() and np.isfinite(pointwise).all() and math.isfinite(square)):
            return Score(math.inf, math.inf, math.nan, math.inf)
        at = int(np.argmax(total))
        return Score(square, float(total[at]), float(cells.y[at]), float(pointwise.max()))


def float32_outputs(branch: Branch, count: int) -> Array:
    """About `count` float32 numbers of the branch's range, as float64, increasing.

    They are every number next to a finite end and a little beyond it, evenly spaced ones as far as g moves, where
    rounding is largest, and geometrically spaced ones towards 0 and the ends.
    """
    low, high = branch.range
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


@dataclass(frozen=True)
class Rule:
    """The errors that a fit may have; infinite where the rule sets no limit."""

    text: str  # the rule in words, as files and reports have it
    square: float = math.inf  # the mean square that may be added to the error floor's
    # linf, pointwise: as in `Score`
    linf: float = math.inf
    pointwise: float = math.inf

    @property
    def by_rms(self) -> bool:
        """Whether the rule limits the mean square."""
        return math.isfinite(self.square)

    def fits(self, scores: Iterable[Score]) -> bool:
        """Whether formulas with these scores, one for each branch, keep the rule."""
        scores = list(scores)
        return (
            sum(score.square for score in scores) <= self.square
            and max(score.linf for score in scores) <= self.linf
            and max(score.pointwise for score in scores) <= self.pointwise
        )


def relaxed(error_floor: ErrorFloor, of_g: Sequence[Score], scores_of_rows: Sequence[Sequence[Score]]) -> Rule:
    """The rule for an error floor that no smooth function reaches: shares of the least error of any row, or of g.

    An example is tanhshrink in bfloat16, where hardly two x share a y: a table by y would know each x, g does not.
    """
    added = min(sum(score.square for score in scores) for scores in (of_g, *scores_of_rows))
    least = min((max(score.linf for score in scores) for scores in scores_of_rows), default=0.0)
    largest = max(least, *(score.linf for score in of_g))
    return Rule(
        RELAXED,
        square=(1.0 + RMS_SHARE) ** 2 * (error_floor.rms**2 + added) - error_floor.rms**2,
        linf=(1.0 + LINF_SHARE) * largest,
    )


def rule_for(error_floor: ErrorFloor, max_error: float | None = None) -> Rule:
    """The rule for outputs of a dtype: a share above the error floor, or `max_error` at stored outputs.

    If rounding f' itself to the dtype costs more than the error floor, the shares are of that cost.

    error_floor: of the activation and dtype.
    max_error: the largest |q - g| allowed, instead of the dtype's own rule.
    Raises `InputError` if float32 cannot tell `max_error` from 0.
    """
    largest = max(float(abs(cells.middle).max()) for cells in error_floor.cells)
    if max_error is not None:
        if max_error < (least := largest * 2.0**-24):
            raise InputError(f"max-error must be at least {least!r}, where float32 rounds, got {max_error:g}")
        return Rule(f"max |q - g| at most {max_error:g}", pointwise=max_error)
    if error_floor.format.precision > 16:
        most = FLOAT32 * 2.0 ** math.floor(math.log2(largest)) if largest > 0 else FLOAT32
        return Rule(f"max |q - g| at most {most:.3g} in float32", pointwise=most)
    rms, linf = max(error_floor.rms, error_floor.rounding_rms), max(error_floor.linf, error_floor.rounding_linf)
    at_floor = (rms, linf) == (error_floor.rms, error_floor.linf)
    of_what = "the floor" if at_floor else "the floor or of what rounding f' costs"
    return Rule(
        f"RMS within {RMS_SHARE:.0%}, largest error within {LINF_SHARE:.0%} of {of_what}",
        square=((1.0 + RMS_SHARE) ** 2 - 1.0) * rms**2,
        linf=error_floor.linf + LINF_SHARE * linf,
    )
