"""One judge for all formulas: their errors in float32 arithmetic, the rule they must keep, and the Pareto front."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fitting.activations.tape import Array
from fitting.errors import InputError
from fitting.invact.branches import Side
from fitting.invact.error_floor import Cells, Floor
from fitting.invact.exact import slope_of_output
from fitting.invact.formula import Candidate, Formula, pair_price
from fitting.invact.price import Price, improving

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


RMS_SHARE, LINF_SHARE = 0.02, 0.10  # by which the total error may exceed the floor
RELAXED = f"RMS within {RMS_SHARE:.0%}, largest error within {LINF_SHARE:.0%} of what is possible; the floor is not"
FLOAT32 = 2.0**-20  # the largest error for float32, times the power of two at or below max |g|


@dataclass(frozen=True)
class Rule:
    """What a fit must reach, infinite where it does not matter.

    `square`: the mean square beside the floor's; `linf` and `pointwise` as in `Score`.
    """

    text: str
    square: float = math.inf
    linf: float = math.inf
    pointwise: float = math.inf

    @property
    def by_rms(self) -> bool:
        """Whether the mean square is what counts first."""
        return math.isfinite(self.square)

    def fits(self, scores: Iterable[Score]) -> bool:
        """Whether these scores of all sides together are good enough."""
        scores = list(scores)
        return (
            sum(score.square for score in scores) <= self.square
            and max(score.linf for score in scores) <= self.linf
            and max(score.pointwise for score in scores) <= self.pointwise
        )


def relaxed(floor: Floor, of_g: Sequence[Score], found: Sequence[Sequence[Score]]) -> Rule:
    """For a floor that no smooth function reaches: the shares are taken of the least error found, or of g's own.

    So it is with tanhshrink in bfloat16, where hardly two x share a y: a table of all y would know each x, g does not.
    """
    added = min(sum(score.square for score in scores) for scores in (of_g, *found))
    least = min((max(score.linf for score in scores) for scores in found), default=0.0)
    largest = max(least, *(score.linf for score in of_g))
    return Rule(
        RELAXED,
        square=(1.0 + RMS_SHARE) ** 2 * (floor.rms**2 + added) - floor.rms**2,
        linf=(1.0 + LINF_SHARE) * largest,
    )


def rule_for(floor: Floor, max_error: float | None = None) -> Rule:
    """The rule of the floor's dtype, or `max_error` as the largest error at outputs that are stored.

    Where rounding f' itself to the dtype costs more than the floor, that is what the shares are taken of. Raises
    `InputError` for a `max_error` that float32 cannot tell from 0.
    """
    largest = max(float(abs(cells.middle).max()) for cells in floor.cells)
    if max_error is not None:
        if max_error < (least := largest * 2.0**-24):
            raise InputError(f"max-error must be at least {least!r}, where float32 rounds, got {max_error:g}")
        return Rule(f"max |q - g| at most {max_error:g}", pointwise=max_error)
    if floor.format.precision > 16:
        most = FLOAT32 * 2.0 ** math.floor(math.log2(largest)) if largest > 0 else FLOAT32
        return Rule(f"max |q - g| at most {most:.3g} in float32", pointwise=most)
    rms, linf = max(floor.rms, floor.rounding_rms), max(floor.linf, floor.rounding_linf)
    of_what = "the floor" if (rms, linf) == (floor.rms, floor.linf) else "the floor or of what rounding f' costs"
    return Rule(
        f"RMS within {RMS_SHARE:.0%}, largest error within {LINF_SHARE:.0%} of {of_what}",
        square=((1.0 + RMS_SHARE) ** 2 - 1.0) * rms**2,
        linf=floor.linf + LINF_SHARE * linf,
    )


@dataclass(frozen=True)
class Row:
    """A formula for every side with its price and errors: a point of the front. `rms` and `linf` are total."""

    candidates: tuple[Candidate, ...]
    scores: tuple[Score, ...]
    price: Price
    rms: float
    linf: float
    linf_at: float
    pointwise: float

    @property
    def engine(self) -> str:
        """Who proposed the formulas."""
        return "+".join(dict.fromkeys(candidate.form.engine for candidate in self.candidates))

    @property
    def is_fitted(self) -> bool:
        """Whether some formula is neither a closed form nor the paper's."""
        return any(candidate.form.engine not in ("closed", "published") for candidate in self.candidates)


def surely(row: Row, judges: list[Judge]) -> Row:
    """The row with its largest errors in float32 looked for at many more outputs."""
    scores = tuple(
        replace(score, pointwise=max(score.pointwise, judge.at_many(one)))
        for one, score, judge in zip(row.candidates, row.scores, judges, strict=True)
    )
    return replace(row, scores=scores, pointwise=max(score.pointwise for score in scores))


def judged(floor: Floor, judges: list[Judge], candidates: tuple[Candidate, ...]) -> Row:
    """A row from one formula a side."""
    return row_of(floor, candidates, tuple(judge(one) for judge, one in zip(judges, candidates, strict=True)))


def row_of(floor: Floor, candidates: tuple[Candidate, ...], scores: tuple[Score, ...]) -> Row:
    """A row from formulas and their scores."""
    cost = candidates[0].price if len(candidates) == 1 else pair_price(*candidates)
    rms = math.sqrt(floor.rms**2 + sum(score.square for score in scores))
    worst = max(scores, key=lambda score: score.linf)
    return Row(candidates, scores, cost, rms, worst.linf, worst.linf_at, max(score.pointwise for score in scores))


def front_error(row: Row, rule: Rule) -> float:
    """What the front is ordered by."""
    return row.rms if rule.by_rms else row.pointwise


def pareto_front(rows: Sequence[Row], rule: Rule) -> tuple[Row, ...]:
    """The Pareto front, cheapest first: each row costs more than those before it, and errs less."""
    ordered = sorted(rows, key=lambda row: (row.price.total, front_error(row, rule)))
    return tuple(improving(ordered, lambda row: front_error(row, rule)))


def pareto(scored: list[tuple[Candidate, Score]], rule: Rule) -> list[tuple[Candidate, Score]]:
    """Those of one side that no other beats in price and in every error that the rule looks at."""

    def errors(score: Score) -> tuple[float, ...]:
        return (score.square, max(score.linf, rule.linf)) if rule.by_rms else (score.pointwise,)

    kept: list[tuple[Candidate, Score]] = []
    for one, score in sorted(scored, key=lambda pair: (pair[0].price.total, errors(pair[1]))):
        beaten = any(all(a <= b for a, b in zip(errors(k), errors(score), strict=True)) for _, k in kept)
        if score.finite and not beaten:
            kept.append((one, score))
    return kept
