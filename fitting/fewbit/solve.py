"""From an activation and a number of bits to the best table there is, with a proof of how good it is."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from actfit.fitting.activations import Activation
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit import judge
from actfit.fitting.fewbit.arguments import check_arguments
from actfit.fitting.fewbit.curve import Curve
from actfit.fitting.fewbit.measure import Measure
from actfit.fitting.fewbit.polish import NOISE, first_of_twins, polish
from actfit.fitting.fewbit.rules import MAX_BITS, check_budget, check_max_error
from actfit.fitting.fewbit.search import Effort, SearchResult, search
from actfit.fitting.fewbit.steps import Steps
from actfit.fitting.weights import Weight, uniform
from actfit.fitting.words import counted, upwards

BOUND_DIGITS = 7  # the stored bound is rounded down to these
UNSEEN = 1e-4  # relative: how far two grids may differ on a density of which nothing but values is known


@dataclass(frozen=True)
class Errors:
    """How far a table q is from f', and how far it can be from the best.

    Attributes
    ----------
    l2_squared : float
        ∫ (f' - q)² w over the domain.
    linf : float
        sup |f' - q| on the domain.
    linf_at : float or None
        Where it is attained; None when linf is 0.
    lower_bound : float
        No function of the kind fitted has l2_squared below it.
    gap : float
        (l2_squared - lower_bound) / l2_squared.
    """

    l2_squared: float
    linf: float
    linf_at: float | None
    lower_bound: float
    gap: float


@dataclass(frozen=True)
class Fit:
    """A table for one activation, and the arguments of its fit.

    Attributes
    ----------
    activation, bits, levels, weight, domain
        As `fit` was given them, or its defaults.
    steps : Steps
        The table q: its borders, codes and levels.
    error : Errors
        Of q.
    budget : float or None
        Seconds after which its search was cut short; None if it was not.
    """

    activation: Activation
    bits: int
    levels: str
    weight: Weight
    domain: tuple[float, float]
    steps: Steps
    error: Errors
    budget: float | None = None


def fit(
    activation: Activation,
    bits: int,
    *,
    levels: str = "best",
    weight: Weight | None = None,
    domain: tuple[float, float] | None = None,
    target_gap: float | None = None,
    budget: float | None = None,
    report: Callable[[str], None] | None = None,
) -> Fit:
    """The q with at most 2**bits levels that minimises ∫ (f'(x) - q(x))² w(x) dx over the domain.

    Parameters
    ----------
    activation : Activation
        The function f.
    bits : int
        1 to 8.
    levels : str
        "contiguous": each level on one interval (the FewBit paper); "shared": a level serves every x whose f'(x) is
        nearest to it; "even": contiguous in |x|, for even f'; "best": the least error of them, which is always the
        shared one, for the others are functions of its kind too.
    weight : Weight, optional
        The distribution of x; uniform by default.
    domain : (float, float), optional
        The ends of x; by default the weight's own.
    target_gap : float, optional
        The gap at which the search ends: by default 1e-5 up to 4 bits, 1e-4 from 5 on.
    budget : float, optional
        Seconds after which the search stops and its best table so far is taken, with the gap proven so far; the
        result depends on the machine.
    report : callable, optional
        Called with a short text of what is being done.

    Returns
    -------
    Fit
        The table, with its errors and the proven gap.

    Raises
    ------
    InputError
        For arguments out of range, for an f' that is not bounded on the domain, and for a weight on which two grids
        disagree.
    """
    begun = time.monotonic()
    task = _task(activation, bits, levels, weight, domain)
    if budget is not None:
        check_budget(budget)
    effort = Effort(target_gap, math.inf if budget is None else begun + budget)
    return _judged(*_searched(task, effort, report), budget)


def fit_to_error(
    activation: Activation,
    max_error: float,
    *,
    levels: str = "best",
    weight: Weight | None = None,
    domain: tuple[float, float] | None = None,
    target_gap: float | None = None,
    report: Callable[[str], None] | None = None,
) -> Fit:
    """The fit with the fewest bits whose l2_squared is at most `max_error`.

    A number of bits is given up once a lower bound shows that it does not suffice. Other arguments are those of `fit`.

    Parameters
    ----------
    max_error : float
        The largest l2_squared allowed.

    Raises
    ------
    InputError
        As `fit` does, and when 8 bits do not reach it.
    """
    check_max_error(max_error)
    effort = Effort(target_gap, sought=max_error)
    for bits in range(1, MAX_BITS + 1):
        task, measure, search_result = _searched(_task(activation, bits, levels, weight, domain), effort, report)
        if search_result.bound > max_error:
            reached = upwards(search_result.error * (1 + NOISE), 3)  # a full search would do at least as well
            continue
        result = _judged(task, measure, search_result)
        if result.error.l2_squared <= max_error:
            return result
        reached = repr(result.error.l2_squared)
    raise InputError(f"max-error must be at least {reached}, what {MAX_BITS} bits reach, got {max_error:g}")


@dataclass(frozen=True)
class _Task:
    """The checked arguments of a fit."""

    activation: Activation
    bits: int
    levels: str
    weight: Weight
    domain: tuple[float, float]


def _task(
    activation: Activation, bits: int, levels: str, weight: Weight | None, domain: tuple[float, float] | None
) -> _Task:
    weight = weight or uniform()
    return _Task(activation, bits, levels, weight, check_arguments(activation, bits, levels, weight, domain))


def _searched(task: _Task, effort: Effort, report: Callable[[str], None] | None) -> tuple[_Task, Measure, SearchResult]:
    if report is not None:
        report_of = report
        effort = replace(effort, report=lambda text: report_of(f"{counted(task.bits, 'bit')}: {text}"))
    effort.report("cuts f' where it turns")
    if task.levels == "even":
        measure = Measure(task.activation, task.weight.folded(), (0.0, task.domain[1]))
    else:
        measure = Measure(task.activation, task.weight, task.domain)
    search_result = search(measure, 2**task.bits, task.levels in ("best", "shared"), effort)
    effort.report("last digits, and the judge")
    return task, measure, search_result


def _judged(task: _Task, measure: Measure, search_result: SearchResult, budget: float | None = None) -> Fit:
    """The fit from a search's result: polished, and its error integrated again, from the definition."""
    activation, domain, steps, bound = task.activation, task.domain, search_result.steps, search_result.bound
    if not (search_result.exact or search_result.cut_short):
        steps = polish(measure, first_of_twins(measure, steps))
    half = steps.error(measure)
    if task.levels == "even":
        steps = steps.unfolded()
    l2, doubt = judge.l2_and_doubt(activation, task.weight, domain, steps)
    if task.levels == "even" and l2 > half * (1 + NOISE) + NOISE * measure.mass * measure.span**2:
        # Parity is decided at some points near 0: beyond them f' may be another function.
        raise InputError(f"levels even needs an even f', and that of {activation.name} is not on this domain")
    _check_agreement(task, (l2, half, bound), doubt + measure.doubt)
    error = _errors(activation, domain, steps, l2, bound)
    cut = budget if search_result.cut_short else None
    return Fit(activation, task.bits, task.levels, task.weight, domain, steps, error, cut)


def _check_agreement(task: _Task, errors: tuple[float, float, float], doubt: float) -> None:
    """Raise `InputError` where the judge's error, the search's and the lower bound contradict each other.

    They use two sets of points; a contradiction means that f' or w has a feature between these.
    """
    judged, searched, bound = errors
    by_call = task.weight.density is not None and task.weight.spelling is None
    allowed = doubt + (UNSEEN if by_call else judge.WEIGHTED_TOLERANCE) * judged
    if abs(judged - searched) <= allowed and bound <= judged + allowed:
        return
    got = f"got an error of {judged:.6g} on one grid, {searched:.6g} on another, and a bound of {bound:.6g}"
    if task.weight.density is None or task.weight.height is not None:
        name = task.activation.name
        raise InputError(f"f' of {name} must be one that a grid can follow, {got}; try a smaller --domain")
    raise InputError(
        f"weight {task.weight.label} must have no feature that a grid steps over, {got}; "
        "give landmarks=... at its peaks, kinks and jumps"
    )


def _errors(activation: Activation, domain: tuple[float, float], steps: Steps, l2: float, bound: float) -> Errors:
    largest, at = judge.linf(Curve(activation, *domain), steps)
    bound = min(round_down(bound, BOUND_DIGITS), l2)  # above it by no more than rounding, as was checked
    return Errors(l2, largest, at, bound, (l2 - bound) / l2 if l2 else 0.0)


def round_down(value: float, digits: int) -> float:
    """The largest float of `digits` significant digits that is not above `value`."""
    rounded = float(f"{value:.{digits - 1}e}")
    if rounded > value:
        rounded = float(f"{value - 10.0 ** (math.floor(math.log10(value)) - digits + 1):.{digits - 1}e}")
    return rounded
