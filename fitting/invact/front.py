"""Rows, each a formula for every branch with its price and errors: the rows that engines propose, and their front."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from actfit.fitting.invact.engines import ENGINES, IMPORTED, SLOW, Engine, Settings
from actfit.fitting.invact.engines.adapted import adapted_candidates
from actfit.fitting.invact.engines.closed_form import closed_candidate
from actfit.fitting.invact.engines.problem import Problem, joint_problems, problems
from actfit.fitting.invact.engines.refit import refit
from actfit.fitting.invact.engines.stretch import stretch_of
from actfit.fitting.invact.error_floor import ErrorFloor
from actfit.fitting.invact.formula import Candidate, Form, pair_price
from actfit.fitting.invact.judge import Judge, Rule, Score
from actfit.fitting.invact.price import Price, improving

UNFITTED = ("closed", "published")  # engines whose formulas are taken as they are
JOINT = 1e-4  # of max |g|: the least error for which one formula for both branches is tried
NEAR = 1.25  # errors, in parts of the largest allowed, that another polish may bring below it: it gains a fifth at most

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Row:
    """A formula for each branch, priced and judged together: a point of the front."""

    candidates: tuple[Candidate, ...]  # the formulas, left to right
    scores: tuple[Score, ...]  # the errors of each
    price: Price  # of all formulas and of the selection between them by the bit
    # rms, linf: total errors |q - f'(x)| over all x, which include the error floor
    rms: float
    linf: float
    linf_at: float  # the output where `linf` is attained
    pointwise: float  # the largest |q - g(y)| at stored outputs

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

    front: list[tuple[Candidate, Score]] = []
    for candidate, score in sorted(scored, key=lambda pair: (pair[0].price.total, errors(pair[1]))):
        beaten = any(all(a <= b for a, b in zip(errors(other), errors(score), strict=True)) for _, other in front)
        if score.finite and not beaten:
            front.append((candidate, score))
    return front


def proposals(
    error_floor: ErrorFloor,
    rule: Rule,
    judges: list[Judge],
    engines: tuple[str, ...],
    settings: Settings,
    progress: Progress,
) -> list[Row]:
    """Every combination of one formula per branch that may be on the front."""
    exact = _closed_candidates(error_floor, judges)
    if all(exact):
        row = judged(error_floor, judges, tuple(candidate for candidate in exact if candidate))
        return [row, *_adapted_rows(row, error_floor, rule, judges)]
    tasks = [
        [] if candidate else problems(stretch_of(error_floor.split, index), error_floor, rule)
        for index, candidate in enumerate(exact)
    ]
    joinable = len(tasks) == 2 and all(tasks) and "minimax" in engines and _may_join(rule, error_floor)
    joint = joint_problems(*tasks) if joinable else []
    fast = [ENGINES[name] for name in engines if name not in SLOW]
    slow = [ENGINES[name] for name in engines if name in SLOW] + [IMPORTED] * (settings.imported is not None)
    count = sum(len(fast) * len(of_branch) + len(slow) * bool(of_branch) for of_branch in tasks) + len(joint)
    solved = 0

    def solve(problem: Problem, engine: Engine) -> list[Form]:
        nonlocal solved
        forms = engine(problem, settings, lambda text: progress(solved, count, text))
        solved += 1
        progress(solved, count, "")
        return forms

    fronts = []
    for closed, of_branch, judge in zip(exact, tasks, judges, strict=True):
        scored = [(closed, judge(closed))] if closed else []
        for i, (variable, problem) in enumerate(of_branch):
            asked = fast + slow * (i == len(of_branch) // 2)  # the slow engines get one variable, from the middle
            forms = [form for engine in asked for form in solve(problem, engine)]
            for form in forms:
                candidate = Candidate(form, variable).rounded()
                scored += _with_another_polish(candidate, problem, rule, judge)
        fronts.append(branch_front(scored, rule))
    rows = [row_of(error_floor, *zip(*scored, strict=True)) for scored in product(*fronts)]
    for left, right, problem in joint:
        for form in solve(problem, ENGINES["minimax"]):
            pair = Candidate(form, left).rounded(), Candidate(form, right).rounded()
            rows.append(judged(error_floor, judges, pair))
    return [row for row in rows if math.isfinite(row.linf)]


def _closed_candidates(error_floor: ErrorFloor, judges: list[Judge]) -> list[Candidate | None]:
    """The closed form of each branch; None where there is none, or float32 cannot compute it."""
    split, format_ = error_floor.split, error_floor.format
    candidates = (closed_candidate(split, branch, format_) for branch in split.branches)
    return [
        candidate if candidate and judge(candidate).finite else None
        for candidate, judge in zip(candidates, judges, strict=True)
    ]


def _with_another_polish(
    candidate: Candidate, problem: Problem, rule: Rule, judge: Judge
) -> list[tuple[Candidate, Score]]:
    """The candidate with its score; if it misses a largest error narrowly, also with the constants of another polish.

    A polish ends where its trust region has collapsed, which may be on a ridge and no minimum. Rounding the constants
    to float32 leads off the ridge: from there a polish takes a sixth off the error of mish's formula of 46
    instructions.
    """
    scored = [(candidate, judge(candidate))]
    if not rule.by_rms and rule.pointwise < scored[0][1].pointwise <= NEAR * rule.pointwise:
        polished = replace(candidate, form=refit(candidate.form, problem.target)).rounded()
        scored.append((polished, judge(polished)))
    return scored


def _adapted_rows(closed: Row, error_floor: ErrorFloor, rule: Rule, judges: list[Judge]) -> list[Row]:
    """The closed forms adapted to a 16-bit format, if they miss its rule and come nearer so."""
    if not rule.by_rms or rule.fits(closed.scores):
        return []
    candidates = adapted_candidates(error_floor)
    rows = [] if candidates is None else [judged(error_floor, judges, candidates)]
    return [row for row in rows if row.rms < closed.rms]


def _may_join(rule: Rule, error_floor: ErrorFloor) -> bool:
    """Whether one formula for both branches is worth a try: not for errors far below those of a 16-bit format.

    At the left end g has a logarithm, which a formula that reaches to the right as well follows too slowly.
    """
    return rule.by_rms or rule.pointwise > JOINT * max(float(np.abs(cells.middle).max()) for cells in error_floor.cells)
