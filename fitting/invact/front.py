"""Rows, each a formula for every branch with its price and errors, and the Pareto front of rows."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from fitting.invact.error_floor import ErrorFloor
from fitting.invact.formula import Candidate, pair_price
from fitting.invact.judge import Judge, Rule, Score
from fitting.invact.price import Price

UNFITTED = ("closed", "published")  # engines whose formulas are taken as they are

Item = TypeVar("Item")


@dataclass(frozen=True)
class Row:
    """A formula for each branch, priced and judged together: a point of the front.

    Attributes
    ----------
    candidates : tuple of Candidate
        The formulas, left to right.
    scores : tuple of Score
        The errors of each.
    price : Price
        Of all formulas and of the selection between them by the bit.
    rms, linf : float
        Total errors |q - f'(x)| over all x, which include the error floor.
    linf_at : float
        The output where `linf` is attained.
    pointwise : float
        The largest |q - g(y)| at stored outputs.
    """

    candidates: tuple[Candidate, ...]
    scores: tuple[Score, ...]
    price: Price
    rms: float
    linf: float
    linf_at: float
    pointwise: float

    @property
    def engine(self) -> str:
        """The engines that proposed the formulas, joined by +."""
        return "+".join(dict.fromkeys(candidate.form.engine for candidate in self.candidates))

    @property
    def is_fitted(self) -> bool:
        """Whether some formula is neither a closed form nor the paper's."""
        return any(candidate.form.engine not in UNFITTED for candidate in self.candidates)


def with_many_outputs(row: Row, judges: Sequence[Judge]) -> Row:
    """The row with its largest errors |q - g| searched at many more outputs."""
    scores = tuple(
        replace(score, pointwise=max(score.pointwise, judge.at_many(candidate)))
        for candidate, score, judge in zip(row.candidates, row.scores, judges, strict=True)
    )
    return replace(row, scores=scores, pointwise=max(score.pointwise for score in scores))


def judged(error_floor: ErrorFloor, judges: Sequence[Judge], candidates: tuple[Candidate, ...]) -> Row:
    """A row from one formula for each branch."""
    scores = (judge(candidate) for judge, candidate in zip(judges, candidates, strict=True))
    return row_of(error_floor, candidates, tuple(scores))


def row_of(error_floor: ErrorFloor, candidates: tuple[Candidate, ...], scores: tuple[Score, ...]) -> Row:
    """A row from formulas and their scores."""
    cost = candidates[0].price if len(candidates) == 1 else pair_price(*candidates)
    rms = math.sqrt(error_floor.rms**2 + sum(score.square for score in scores))
    worst = max(scores, key=lambda score: score.linf)
    return Row(candidates, scores, cost, rms, worst.linf, worst.linf_at, max(score.pointwise for score in scores))


def front_error(row: Row, rule: Rule) -> float:
    """The error by which the front is ordered."""
    return row.rms if rule.by_rms else row.pointwise


def pareto_front(rows: Sequence[Row], rule: Rule) -> tuple[Row, ...]:
    """The Pareto front, cheapest first: each row costs more than the rows before it, and errs less."""
    ordered = sorted(rows, key=lambda row: (row.price.total, front_error(row, rule)))
    return tuple(improving(ordered, lambda row: front_error(row, rule)))


def branch_front(scored: list[tuple[Candidate, Score]], rule: Rule) -> list[tuple[Candidate, Score]]:
    """The candidates of one branch that no other beats in price and in every error that the rule limits."""

    def errors(score: Score) -> tuple[float, ...]:
        return (score.square, max(score.linf, rule.linf)) if rule.by_rms else (score.pointwise,)

    kept: list[tuple[Candidate, Score]] = []
    for candidate, score in sorted(scored, key=lambda pair: (pair[0].price.total, errors(pair[1]))):
        beaten = any(all(a <= b for a, b in zip(errors(other), errors(score), strict=True)) for _, other in kept)
        if score.finite and not beaten:
            kept.append((candidate, score))
    return kept


def improving(items: Iterable[Item], error: Callable[[Item], float]) -> list[Item]:
    """The items that err less than all items before them; the items come in order of their price."""
    kept: list[Item] = []
    for item in items:
        if not kept or error(item) < error(kept[-1]):
            kept.append(item)
    return kept
