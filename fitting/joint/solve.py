"""From an activation and a number of bits to the best joint code there is, with a proof of how good it is."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from actfit.fitting.activations import Activation
from actfit.fitting.activations.tape import Array
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.arguments import check_arguments
from actfit.fitting.fewbit.dp import partition
from actfit.fitting.fewbit.measure import MAX_CELLS
from actfit.fitting.fewbit.polish import DIGITS, NOISE, trimmed
from actfit.fitting.fewbit.solve import BOUND_DIGITS, round_down
from actfit.fitting.joint import judge
from actfit.fitting.joint.certificate import lower_bound
from actfit.fitting.joint.plane import Cells, Plane
from actfit.fitting.joint.refine import error_of, refine
from actfit.fitting.joint.rules import check_output_weight
from actfit.fitting.joint.samples import SamplePlane
from actfit.fitting.joint.table import Table
from actfit.fitting.weights import Weight, named
from actfit.fitting.words import counted, percent

TARGET_GAP = 1e-3
SHARPEST = 1 / 64  # the least factor of `spare` from round to round: about 8 times the cells
DEFAULT_WEIGHT = "norm"


@dataclass(frozen=True)
class Errors:
    """How far a joint code is from f' and f, and how far it can be from the best."""

    # derivative, output: ∫ (f' - q)² w and ∫ (f - y)² w over the domain
    derivative: float
    output: float
    total: float  # derivative + λ output
    # derivative_share, output_share: √(derivative / ∫ f'² w) and √(output / ∫ f² w): relative root mean squares;
    # 0 where both integrals are
    derivative_share: float
    output_share: float
    lower_bound: float  # no code of as many levels on successive intervals has a total below it
    gap: float  # (total - lower_bound) / total


@dataclass(frozen=True)
class JointFit:
    """A joint code for one activation, and the arguments of its fit."""

    # activation, bits, output_weight, weight, domain: as `fit_joint` was given them, or its defaults
    activation: Activation
    bits: int
    output_weight: float
    weight: Weight
    domain: tuple[float, float]
    table: Table  # borders and levels
    error: Errors  # errors of the table


def fit_joint(
    activation: Activation,
    bits: int,
    *,
    output_weight: float = 1.0,
    weight: Weight | None = None,
    domain: tuple[float, float] | None = None,
    target_gap: float = TARGET_GAP,
    report: Callable[[str], None] | None = None,
) -> JointFit:
    """The code of 2**bits successive intervals that minimises ∫ [(f' - q)² + λ (f - y)²] w dx over the domain.

    An element's code is the index of the interval of x; q and y, which have a level of f' and of f for each interval,
    stand for f'(x) and f(x) in the backward pass.

    activation: the function f.
    bits: 1 to 8.
    output_weight: λ, positive. Towards 0 the best contiguous few-bit table of f'; towards infinity the best
        quantiser of f(x).
    weight: the distribution of x; the standard normal one by default.
    domain: the ends of x; by default the weight's own.
    target_gap: the gap at which the search ends.
    report: called with a short text of what is being done.
    Returns the code, with its errors and the proven gap.
    Raises `InputError` for arguments out of range, for an f or f' that is not bounded on the domain, and for a
    weight on which two grids disagree.
    """
    check_output_weight(output_weight)
    weight = weight or named(DEFAULT_WEIGHT)
    domain = check_arguments(activation, bits, "contiguous", weight, domain)
    kind = Plane if weight.samples is None else SamplePlane
    plane = kind(activation, output_weight, weight, domain)
    borders, bound = _search(plane, 2**bits, target_gap, report or (lambda text: None))
    table = _table(plane, borders)
    errors = _judged(plane, output_weight, table, bound)
    return JointFit(activation, bits, float(output_weight), weight, domain, table, errors)


def _search(plane: Plane, k: int, target_gap: float, report: Callable[[str], None]) -> tuple[Array, float]:
    """The best borders, and a lower bound of every code's error: the grid's optimum, refined, on ever finer cells."""
    spare, count = min(1e-4, 1e-1 / k**2) * plane.mass * plane.reach, 0
    best, error, bound = np.zeros(0), math.inf, 0.0
    while True:
        cells = plane.cells(spare)
        gap = f", gap {percent((error - bound) / error)}" if 0 < error < math.inf else ""
        report(f"{counted(len(cells.lo), 'cell')}{gap}")
        borders, cost, slack = _grid_optimum(cells, k)
        borders = plane.between(borders) if isinstance(plane, SamplePlane) else refine(plane, borders)
        reached, gain = lower_bound(plane, cells, k, cost, slack)
        if (refined_error := error_of(plane, borders)) < error:
            best, error = borders, refined_error
        bound, target = max(bound, reached), target_gap * error
        if error - bound <= target or gain <= target / 4 or len(cells.lo) in (count, MAX_CELLS):
            return best, bound
        # Finer cells lessen the gain, in proportion to `spare`, but not the rounding that keeps the two apart too.
        rest = max(0.0, error - reached - gain)
        sharper = 0.8 * max(target - rest, target / 4) / gain
        spare = min(spare, float(cells.spare.max())) * min(0.5, max(sharper, SHARPEST))
        count = len(cells.lo)


def _grid_optimum(cells: Cells, k: int) -> tuple[Array, float, float]:
    """The borders of the cheapest code that is constant on cells, its cost between cells, and rounding slack."""
    weighted = np.flatnonzero(cells.moments.mass > 0)
    best = partition(cells.moments.mean[weighted], cells.moments.mass[weighted], k)
    return cells.lo[weighted][best.cuts], best.cost, best.slack


def _table(plane: Plane, borders: Array) -> Table:
    """The code of these borders; levels are means of f and f'. To 12 digits, unless that raises the error."""
    leaps = np.isin(borders, plane.curve.edges)  # a border at a kink or a jump of f' stays on it
    rounded = np.where(leaps, borders, trimmed(borders))
    in_order = np.all(np.diff(np.concatenate([plane.domain[:1], rounded, plane.domain[1:]])) > 0)
    if in_order and error_of(plane, rounded) <= error_of(plane, borders) * (1 + NOISE):
        borders = rounded
    derivatives, outputs = plane.intervals(borders).mean.T
    return Table(borders, np.array(trimmed(derivatives)), np.array(trimmed(outputs / plane.root)))


def _judged(plane: Plane, output_weight: float, table: Table, bound: float) -> Errors:
    """The errors of `table`, integrated again on other cells; `InputError` where they contradict the search."""
    judged = judge.errors(plane.activation, plane.weight, plane.domain, table)
    total = judged.derivative + output_weight * judged.output
    rounding = plane.mass * (plane.top * 10.0 ** (1 - DIGITS)) ** 2  # of levels, which are rounded means
    allowed = max(1.0, output_weight) * judged.doubt + plane.doubt + judge.TOLERANCE * total
    allowed += rounding
    searched = error_of(plane, table.borders)
    if abs(total - searched) > allowed + NOISE * total or bound > total + allowed:
        raise InputError(
            f"f' and f of {plane.activation.name} and weight {plane.weight.label} must be such that a grid can follow, "
            f"got an error of {total:.6g} on one, {searched:.6g} on another, and a bound of {bound:.6g}; "
            "try a smaller --domain, or landmarks=... at narrow peaks of the weight"
        )
    bound = min(round_down(bound, BOUND_DIGITS), total)
    gap = (total - bound) / total if total else 0.0
    return Errors(judged.derivative, judged.output, total, **judge.shares(judged), lower_bound=bound, gap=gap)
