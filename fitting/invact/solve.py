"""Fit g for one activation and dtype: engines propose formulas, one judge measures them, the cheapest good one wins."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from actfit.coefficients import naming
from actfit.fitting.activations import Activation, check_activation
from actfit.fitting.errors import InputError
from actfit.fitting.invact.arguments import check_max_error
from actfit.fitting.invact.engines import DEFAULT, Settings, parse_engines
from actfit.fitting.invact.engines.adapted import CLOSED_FORMS
from actfit.fitting.invact.engines.closed_form import ENGINE as CLOSED
from actfit.fitting.invact.engines.papers import ENGINE as PUBLISHED
from actfit.fitting.invact.engines.papers import published
from actfit.fitting.invact.error_floor import ErrorFloor, information_floor, second_bit
from actfit.fitting.invact.front import Progress, Row, front_error, judged, pareto_front, proposals, with_many_outputs
from actfit.fitting.invact.judge import Judge, Rule, relaxed, rule_for
from actfit.fitting.invact.proof import Bound, prove
from actfit.fitting.weights import Weight, named
from actfit.fitting.words import upwards

DEFAULT_WEIGHT = naming.WEIGHTS["invact"]
TRIED = 40  # good rows that are judged at many more outputs and proven, until one of them passes


@dataclass(frozen=True)
class Fit:
    """A formula for each branch of f, and the front it comes from.

    Attributes
    ----------
    activation : Activation
        The function f.
    dtype : str
        Of the stored outputs.
    engines : tuple of str
        The engines that were asked.
    settings : Settings
        Of the engines.
    weight : Weight
        The distribution of x.
    max_error : float or None
        The largest error allowed, instead of the dtype's own rule.
    error_floor : ErrorFloor
        The least errors that are possible, and the branches of f.
    rule : Rule
        The rule that the best row keeps.
    front : tuple of Row
        The Pareto front of price and error, cheapest first.
    best : Row
        The cheapest row that keeps the rule.
    bounds : tuple of Bound
        A proven bound of the best row's error, for each branch.
    paper : Row or None
        The InvAct paper's formulas under the same judge, if it has some for this activation.
    """

    activation: Activation
    dtype: str
    engines: tuple[str, ...]
    settings: Settings
    weight: Weight
    max_error: float | None
    error_floor: ErrorFloor
    rule: Rule
    front: tuple[Row, ...]
    best: Row
    bounds: tuple[Bound, ...]
    paper: Row | None

    @property
    def listed(self) -> list[Row]:
        """The front and the best row, cheapest first.

        The front may lack the best row: another row of its price may err less by the front's measure, and still break
        the rule.
        """
        missing = [] if any(row is self.best for row in self.front) else [self.best]
        return sorted([*self.front, *missing], key=lambda row: row.price.total)

    @property
    def exact(self) -> bool:
        """Whether every branch has a closed form, as it is."""
        return self.best.engine == CLOSED

    @property
    def unasked(self) -> bool:
        """Whether every branch has a closed form, as it is or adapted: whatever engines were named, none was asked."""
        return self.best.engine in CLOSED_FORMS


def fit(
    activation: Activation,
    dtype: str,
    *,
    bits: int = 1,
    engines: Sequence[str] = DEFAULT,
    weight: Weight | None = None,
    max_error: float | None = None,
    settings: Settings = Settings(),  # noqa: B008 - frozen
    progress: Progress | None = None,
) -> Fit:
    """The cheapest formulas for g = f' o f⁻¹ that keep the dtype's rule, or `max_error`, and the front they come from.

    Parameters
    ----------
    activation : Activation
        The function f, with at most two monotone branches.
    dtype : str
        Of the stored outputs: "bfloat16", "float16" or "float32".
    bits : int
        Stored beside y, as for `information_floor`.
    engines : sequence of str
        Names of engines that propose formulas.
    weight : Weight, optional
        The distribution of x; N(0, 1) by default.
    max_error : float, optional
        The largest |q - g| allowed at stored outputs, instead of the dtype's own rule.
    settings : Settings
        Seed, budget and templates of the engines.
    progress : callable, optional
        Called with the number of problems solved, the number of all, and what a slow engine is doing, or "".

    Returns
    -------
    Fit
        The best formulas with their price, errors and proven bounds.

    Raises
    ------
    InputError
        If one bit does not tell the branches apart, a second one is of no use, an engine or dtype is unknown, or no
        formula is good enough.
    """
    check_activation(activation)
    weight = named(DEFAULT_WEIGHT) if weight is None else weight
    # One BLAS thread: the order of its sums depends on their number, and small matrices gain nothing by more.
    # Formulas may overflow; the judge refuses those that do.
    with threadpool_limits(1), np.errstate(all="ignore"):
        return _fit(activation, dtype, bits, parse_engines(",".join(engines)), weight, max_error, settings, progress)


def _fit(
    activation: Activation,
    dtype: str,
    bits: int,
    engines: tuple[str, ...],
    weight: Weight,
    max_error: float | None,
    settings: Settings,
    progress: Progress | None,
) -> Fit:
    if max_error is not None:
        check_max_error(max_error)
    cut = second_bit(activation, dtype, weight) if bits == 2 else None
    error_floor = information_floor(activation, dtype, weight, bits, cut)
    rule = rule_for(error_floor, max_error)
    judges = [Judge(index, error_floor) for index in range(len(error_floor.split.branches))]
    of_paper = None if activation.params else published(activation.name)
    paper = None if of_paper is None else judged(error_floor, judges, of_paper)
    if engines == (PUBLISHED,):
        if paper is None:
            raise InputError(f"engine published has formulas for gelu and silu, got {activation.name}")
        rows = [paper]
    else:
        rows = proposals(error_floor, rule, judges, engines, settings, progress or (lambda *_: None))
    front = pareto_front(rows, rule)
    rule, best, bounds = _cheapest_good_row(rows, rule, error_floor, judges, max_error is not None)
    if best is None:
        raise InputError(_failure(activation, rule, front))
    front = tuple(best if row.candidates is best.candidates else row for row in front)  # with errors at many outputs
    paper = best if engines == (PUBLISHED,) else paper
    return Fit(activation, dtype, engines, settings, weight, max_error, error_floor, rule, front, best, bounds, paper)


def _cheapest_good_row(
    rows: Sequence[Row], rule: Rule, error_floor: ErrorFloor, judges: list[Judge], has_max_error: bool
) -> tuple[Rule, Row | None, tuple[Bound, ...]]:
    """The rule that is kept, the cheapest row that keeps it, and the bounds of its branches.

    Where no fitted row does, closed forms are taken as they are.
    """
    fitted = [row for row in rows if row.is_fitted]
    rules = [rule] if fitted else []
    if fitted and rule.by_rms:
        rules.append(relaxed(error_floor, [judge.of_g() for judge in judges], [row.scores for row in rows]))
    for allowed in rules:
        good = (row for row in fitted if allowed.fits(row.scores))
        for row in sorted(good, key=lambda row: (row.price.total, front_error(row, rule)))[:TRIED]:
            close = row if rule.by_rms else with_many_outputs(row, judges)
            if allowed.fits(close.scores):
                bounds = _bounds(close, error_floor)
                if all(math.isfinite(bound.upper) for bound in bounds):
                    return allowed, close, bounds
    unfitted = next((row for row in rows if not row.is_fitted), None)
    return (rule, None, ()) if unfitted is None else _as_it_is(unfitted, rule, error_floor, judges, has_max_error)


def _as_it_is(
    row: Row, rule: Rule, error_floor: ErrorFloor, judges: list[Judge], has_max_error: bool
) -> tuple[Rule, Row | None, tuple[Bound, ...]]:
    """Closed forms or the paper's formulas, unless they exceed a max_error that the user set.

    If they miss the dtype's own rule, the rule's text says so.
    """
    close = with_many_outputs(row, judges)
    fits = rule.fits(close.scores)
    if has_max_error and not fits:
        return rule, None, ()
    name = close.engine if fits else f"{close.engine}; misses: {rule.text}"
    return Rule(name), close, _bounds(close, error_floor)


def _bounds(row: Row, error_floor: ErrorFloor) -> tuple[Bound, ...]:
    return tuple(map(prove, row.candidates, error_floor.split.branches))


def _failure(activation: Activation, rule: Rule, front: Sequence[Row]) -> str:
    best = f"the best has {front[-1].rms:.3g} RMS, {front[-1].pointwise:.3g} at most" if front else "none is finite"
    enough = f" (the best needs {upwards(front[-1].pointwise)})" if front else ""
    way_out = f"allow more by --max-error{enough}, or try --engine all"
    return f"no formula found for {activation.name} reaches {rule.text}: {best}; {way_out}"
