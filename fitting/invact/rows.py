"""Rows: a formula for every side, priced and judged together; and the Pareto fronts of such."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fitting.invact.candidate import Candidate, pair_price
from fitting.invact.floor import Floor
from fitting.invact.fronts import improving
from fitting.invact.judge import Judge, Score
from fitting.invact.price import Price
from fitting.invact.rules import Rule


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


def error(row: Row, rule: Rule) -> float:
    """What the front is ordered by."""
    return row.rms if rule.by_rms else row.pointwise


def front(rows: Sequence[Row], rule: Rule) -> tuple[Row, ...]:
    """The Pareto front, cheapest first: each row costs more than those before it, and errs less."""
    ordered = sorted(rows, key=lambda row: (row.price.total, error(row, rule)))
    return tuple(improving(ordered, lambda row: error(row, rule)))


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
