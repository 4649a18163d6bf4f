"""Fit g for one activation and dtype: engines propose, one judge measures, the cheapest that will do is chosen."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from threadpoolctl import threadpool_limits

from coefficients import naming
from fitting.activations import Activation
from fitting.errors import InputError
from fitting.invact.engines import DEFAULT, ENGINES, IMPORTED, SLOW, Engine, Settings, chosen
from fitting.invact.engines.closed_form import closed, closed_form
from fitting.invact.engines.papers import ENGINE as PUBLISHED
from fitting.invact.engines.papers import published
from fitting.invact.engines.problem import Problem, joint_problems, problems
from fitting.invact.engines.unit import unit_of
from fitting.invact.error_floor import Floor, information_floor
from fitting.invact.formula import Candidate, Form
from fitting.invact.judge import (
    Judge,
    Row,
    Rule,
    front_error,
    judged,
    pareto,
    pareto_front,
    relaxed,
    row_of,
    rule_for,
    surely,
)
from fitting.invact.proof.bound import Bound, prove
from fitting.weights import Weight, named

DEFAULT_WEIGHT = naming.WEIGHTS["invact"]
JOINT = 1e-4  # of max |g|: the least error that one formula for both sides is tried for
TRIED = 40  # rows that are good enough, for one that is so at many more outputs and has a proven bound


@dataclass(frozen=True)
class Fit:
    """The floor, the rule, the front (cheapest first), the row chosen from all, a bound for each of its sides.

    `paper`: the formulas of the InvAct paper under the same judge, where it has some for this activation.
    """

    activation: Activation
    dtype: str
    engines: tuple[str, ...]
    settings: Settings
    weight: Weight
    max_error: float | None
    floor: Floor
    rule: Rule
    front: tuple[Row, ...]
    chosen: Row
    bounds: tuple[Bound, ...]
    paper: Row | None

    @property
    def listed(self) -> list[Row]:
        """The front with the chosen row, cheapest first: one of its price may have less error and not be enough."""
        chosen_too = [] if any(row is self.chosen for row in self.front) else [self.chosen]
        return sorted([*self.front, *chosen_too], key=lambda row: row.price.total)

    @property
    def exact(self) -> bool:
        """Whether every side has a closed form."""
        return all(candidate.form.engine == "closed" for candidate in self.chosen.candidates)


def fit(
    activation: Activation,
    dtype: str,
    *,
    engines: Sequence[str] = DEFAULT,
    weight: Weight | None = None,
    max_error: float | None = None,
    settings: Settings = Settings(),  # noqa: B008 - frozen
    progress: Callable[[int, int], None] | None = None,
) -> Fit:
    """The cheapest formulas for g that reach the dtype's rule, or `max_error`, and the front they come from.

    dtype: bfloat16, float16 or float32, of the stored outputs. weight: the distribution of x (default N(0, 1)).
    progress: called with the problems done and their number. Raises `InputError` for an activation that one bit does
    not split, an unknown engine or dtype, and where no formula is good enough.
    """
    weight = named(DEFAULT_WEIGHT) if weight is None else weight
    # The order in which BLAS sums depends on its threads, and small matrices gain nothing by them. What is not finite
    # is judged to be so.
    with threadpool_limits(1), np.errstate(all="ignore"):
        return _fit(activation, dtype, chosen(",".join(engines)), weight, max_error, settings, progress)


def _fit(
    activation: Activation,
    dtype: str,
    engines: tuple[str, ...],
    weight: Weight,
    max_error: float | None,
    settings: Settings,
    progress: Callable[[int, int], None] | None,
) -> Fit:
    if max_error is not None and not 0 < max_error < math.inf:
        raise InputError(f"max-error must be positive and finite, got {max_error:g}")
    floor = information_floor(activation, dtype, weight)
    rule = rule_for(floor, max_error)
    judges = [Judge(side, floor) for side in range(len(floor.split.sides))]
    theirs = None if activation.params else published(activation.name)
    paper = None if theirs is None else judged(floor, judges, theirs)
    if engines == (PUBLISHED,):
        if paper is None:
            raise InputError(f"engine published has formulas for gelu and silu, got {activation.name}")
        found = [paper]
    else:
        found = _rows(floor, rule, judges, engines, settings, progress or (lambda done, count: None))
    front = pareto_front(found, rule)
    rule, best, bounds = _choice(found, rule, floor, judges, max_error is not None)
    if best is None:
        raise InputError(_hopeless(activation, rule, front))
    front = tuple(best if row.candidates is best.candidates else row for row in front)  # as looked at more closely
    paper = best if engines == (PUBLISHED,) else paper
    return Fit(activation, dtype, engines, settings, weight, max_error, floor, rule, front, best, bounds, paper)


def _rows(
    floor: Floor,
    rule: Rule,
    judges: list[Judge],
    engines: tuple[str, ...],
    settings: Settings,
    progress: Callable[[int, int], None],
) -> list[Row]:
    """Every combination worth a look of the formulas of the sides."""
    forms = [closed_form(floor.split, side) for side in floor.split.sides]
    exact = [None if form is None else closed(form, floor.format) for form in forms]
    exact = [one if one and judge(one).finite else None for one, judge in zip(exact, judges, strict=True)]
    if all(exact):
        return [judged(floor, judges, tuple(one for one in exact if one))]
    sides = [[] if one else problems(unit_of(floor.split, side), floor, rule) for side, one in enumerate(exact)]
    joinable = len(sides) == 2 and all(sides) and "minimax" in engines and _may_join(rule, floor)
    both = joint_problems(*sides) if joinable else []
    fast = [ENGINES[name] for name in engines if name not in SLOW]
    slow = [ENGINES[name] for name in engines if name in SLOW] + [IMPORTED] * (settings.imported is not None)
    count, done = sum(len(fast) * len(tasks) + len(slow) * bool(tasks) for tasks in sides) + len(both), 0

    def solved(problem: Problem, engine: Engine) -> list[Form]:
        nonlocal done
        found = engine(problem, settings)
        done += 1
        progress(done, count)
        return found

    fronts = []
    for one, tasks, judge in zip(exact, sides, judges, strict=True):
        candidates = [one] if one else []
        for i, (variable, problem) in enumerate(tasks):
            proposers = fast + slow * (i == len(tasks) // 2)  # the slow ones with one variable, of those in the middle
            proposals = [form for engine in proposers for form in solved(problem, engine)]
            candidates += [Candidate(form, variable).rounded() for form in proposals]
        fronts.append(pareto([(candidate, judge(candidate)) for candidate in candidates], rule))
    found = [row_of(floor, *zip(*scored, strict=True)) for scored in product(*fronts)]
    for left, right, problem in both:
        for form in solved(problem, ENGINES["minimax"]):
            pair = Candidate(form, left).rounded(), Candidate(form, right).rounded()
            found.append(judged(floor, judges, pair))
    return [row for row in found if math.isfinite(row.linf)]


def _may_join(rule: Rule, floor: Floor) -> bool:
    """Whether one formula for both sides is worth a try: not for errors far below those of a 16-bit format.

    At the left end g has a logarithm, which a formula that reaches to the right as well follows too slowly.
    """
    return rule.by_rms or rule.pointwise > JOINT * max(float(np.abs(cells.middle).max()) for cells in floor.cells)


def _choice(
    found: Sequence[Row], rule: Rule, floor: Floor, judges: list[Judge], asked: bool
) -> tuple[Rule, Row | None, tuple[Bound, ...]]:
    """The cheapest row that is good enough, by which rule, and the bounds of its sides.

    A closed form is taken as it is, unless it misses what was `asked`; the rule's text tells when it misses the
    dtype's.
    """
    if len(found) == 1 and not found[0].is_fitted:
        only = surely(found[0], judges)
        fits = rule.fits(only.scores)
        if asked and not fits:
            return rule, None, ()
        name = only.engine if fits else f"{only.engine}; misses: {rule.text}"
        return Rule(name), only, _bounds(only, floor)
    rules = (
        [rule, relaxed(floor, [judge.of_g() for judge in judges], [row.scores for row in found])]
        if rule.by_rms
        else [rule]
    )
    for one in rules:
        good = sorted(
            (row for row in found if one.fits(row.scores)), key=lambda row: (row.price.total, front_error(row, rule))
        )
        for row in good[:TRIED]:
            sure = row if rule.by_rms else surely(row, judges)
            if one.fits(sure.scores):
                bounds = _bounds(sure, floor)
                if all(math.isfinite(bound.upper) for bound in bounds):
                    return one, sure, bounds
    return rule, None, ()


def _bounds(row: Row, floor: Floor) -> tuple[Bound, ...]:
    return tuple(prove(candidate, side) for candidate, side in zip(row.candidates, floor.split.sides, strict=True))


def _hopeless(activation: Activation, rule: Rule, front: Sequence[Row]) -> str:
    best = f"the best has {front[-1].rms:.3g} RMS, {front[-1].pointwise:.3g} at most" if front else "none is finite"
    way_out = "allow more by --max-error, or try --engine all"
    return f"no formula found for {activation.name} reaches {rule.text}: {best}; {way_out}"
