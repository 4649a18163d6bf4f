"""From an activation and a number of bits to the best table there is, with a proof of how good it is."""

import math
from dataclasses import dataclass

import numpy as np

from fitting.activations import Activation
from fitting.errors import InputError
from fitting.fewbit import judge
from fitting.fewbit.certificate import lower_bound
from fitting.fewbit.curve import Curve
from fitting.fewbit.dp import partition
from fitting.fewbit.measure import MAX_CELLS, Cells, Measure
from fitting.fewbit.options import KINDS, MAX_BITS
from fitting.fewbit.polish import NOISE, polish
from fitting.fewbit.refine import refine
from fitting.fewbit.steps import Steps, contiguous_steps, nearest_level_steps, tidy
from fitting.weights import Weight, uniform

FARTHEST = 1e100
TARGET_GAP = 5e-4
SHARPEST = 1 / 64  # what a round asks of the next at most: about 8 times the cells
BOUND_DIGITS = 6  # the stored bound is rounded down to these


@dataclass(frozen=True)
class Errors:
    """l2_squared = ∫ (f' - q)² w; linf = sup |f' - q| on the domain, attained at linf_at (None when 0).

    No function of the kind fitted has l2_squared below lower_bound; gap = (l2_squared - lower_bound) / l2_squared.
    """

    l2_squared: float
    linf: float
    linf_at: float | None
    lower_bound: float
    gap: float


@dataclass(frozen=True)
class Fit:
    """A table for one activation, and what it was asked for."""

    activation: Activation
    bits: int
    levels: str
    weight: Weight
    domain: tuple[float, float]
    steps: Steps
    error: Errors


def fit(
    activation: Activation,
    bits: int,
    *,
    levels: str = "best",
    weight: Weight | None = None,
    domain: tuple[float, float] | None = None,
    target_gap: float = TARGET_GAP,
) -> Fit:
    """The q with at most 2**bits levels that minimises ∫ (f'(x) - q(x))² w(x) dx over the domain.

    levels: "contiguous": each level on one interval (the FewBit paper); "shared": a level serves every x
    whose f'(x) is nearest to it; "even": contiguous in |x|, for even f'; "best": the least error of them,
    which is always the shared one, for the others are functions of its kind too.
    weight: uniform by default. domain: by default the weight's own.
    Raises `InputError` for arguments out of range and for an f' that is not bounded on the domain.
    """
    weight = weight or uniform()
    domain = check_arguments(activation, bits, levels, weight, domain)
    if levels == "even":
        measure = Measure(activation, weight.folded(), (0.0, domain[1]))
    else:
        measure = Measure(activation, weight, domain)
    shared = levels in ("best", "shared")
    k = 2**bits
    steps, bound = _exact_steps(measure, k, shared), 0.0
    if steps is None:
        steps, bound = _search(measure, k, shared, target_gap)
        steps = polish(measure, _first_of_twins(measure, steps))
    half = steps.error(measure)
    if levels == "even":
        steps = steps.unfolded()
    error = _errors(activation, weight, domain, steps, bound)
    if levels == "even" and error.l2_squared > half * (1 + NOISE) + NOISE * measure.mass * measure.span**2:
        # Parity is decided at some points near 0: beyond them f' may be another function.
        raise InputError(f"levels even needs an even f', and that of {activation.name} is not on this domain")
    return Fit(activation, bits, levels, weight, domain, steps, error)


def fit_to_error(activation: Activation, max_error: float, **options: object) -> Fit:
    """The `fit` with the fewest bits whose l2_squared is at most `max_error`.

    Raises `InputError` when 8 bits do not reach it.
    """
    if not (math.isfinite(max_error) and max_error >= 0):
        raise InputError(f"max-error must be finite and at least 0, got {max_error}")
    for bits in range(1, MAX_BITS + 1):
        result = fit(activation, bits, **options)  # type: ignore[arg-type]
        if result.error.l2_squared <= max_error:
            return result
    raise InputError(
        f"max-error must be at least {result.error.l2_squared!r}, what {MAX_BITS} bits reach, got {max_error:g}"
    )


def check_arguments(
    activation: Activation, bits: int, levels: str, weight: Weight, domain: tuple[float, float] | None
) -> tuple[float, float]:
    """The domain to use. Raises `InputError` for the first argument that breaks its rule."""
    if isinstance(bits, bool) or not isinstance(bits, int | np.integer) or not 1 <= bits <= MAX_BITS:
        raise InputError(f"bits must be a whole number from 1 to {MAX_BITS}, got {bits}")
    if levels not in KINDS:
        raise InputError(f"levels must be one of {', '.join(KINDS)}, got {levels!r}")
    lo, hi = map(float, weight.domain if domain is None else domain)
    if domain is None and weight.samples is not None and max(-lo, hi) > FARTHEST:
        raise InputError(
            f"the samples reach {max(lo, hi, key=abs):g}, and squares overflow beyond {FARTHEST:g}: give --domain"
        )
    if levels == "even" and domain is None:
        lo, hi = -max(abs(lo), abs(hi)), max(abs(lo), abs(hi))
    if not (math.isfinite(lo) and math.isfinite(hi) and lo < hi):
        raise InputError(f"domain must be two finite numbers, the lower first, got {lo:g} {hi:g}")
    if max(-lo, hi) > FARTHEST:
        raise InputError(
            f"domain must lie within {-FARTHEST:g} {FARTHEST:g}, where squares do not overflow, got {lo:g} {hi:g}"
        )
    if levels == "even" and activation.parity != "even":
        raise InputError(f"levels even needs an even f', and that of {activation.name} is not; try --levels shared")
    if levels == "even" and lo != -hi:
        raise InputError(
            f"levels even needs a domain symmetric about 0, got {lo:g} {hi:g}; try --domain {-hi:g} {hi:g}"
        )
    return lo, hi


def _first_of_twins(measure: Measure, steps: Steps) -> Steps:
    """Of `steps` and the images of it that are as good by a symmetry of f', the one with the first borders.

    Which of them the search comes upon is a matter of rounding, and so of the machine.
    """
    mirror = steps.mirrored(measure.curve.lo + measure.curve.hi)
    twins = [mirror, mirror.flipped(measure.curve.runs[0].first + measure.curve.runs[-1].last)]
    limit = steps.error(measure) * (1 + NOISE)
    equals = [steps, *(twin for twin in twins if twin.error(measure) <= limit)]
    return min(equals, key=lambda q: np.round(q.borders / (measure.curve.hi - measure.curve.lo), 9).tolist())


def _exact_steps(measure: Measure, k: int, shared: bool) -> Steps | None:
    """f' itself, where it is a step function with few enough values (or intervals, for contiguous)."""
    runs = measure.curve.runs
    if not measure.curve.is_step:
        return None
    values, codes = np.unique([run.first for run in runs], return_inverse=True)
    steps = tidy(np.array([run.lo for run in runs[1:]]), codes, values)
    needed = len(steps.levels) if shared else len(steps.codes)
    return steps if needed <= k else None


def _search(measure: Measure, k: int, shared: bool, target_gap: float) -> tuple[Steps, float]:
    """Grid optimum, refined; on finer cells until the gap to the lower bound is small enough."""
    spare, count = measure.first_spare(k), 0
    best: tuple[float, Steps] | None = None
    bound = 0.0
    while True:
        cells = measure.cells(spare)
        steps, cost, slack = _grid_optimum(measure, cells, k, shared)
        steps = refine(measure, steps, shared)
        error = steps.error(measure)
        if best is None or error < best[0]:
            best = (error, steps)
        reached, gain = lower_bound(measure, cells, k, cost, slack, shared)
        bound, target = max(bound, reached), target_gap * best[0]
        if best[0] - bound <= target or gain <= target / 4 or len(cells.lo) in (count, MAX_CELLS):
            return best[1], bound
        # Finer cells lessen the gain, in proportion to `spare`, but not the rounding that keeps the two apart too.
        rest = max(0.0, best[0] - reached - gain)
        sharper = 0.8 * max(target - rest, target / 4) / gain
        spare = min(spare, float(cells.spare.max())) * min(0.5, max(sharper, SHARPEST))
        count = len(cells.lo)


def _grid_optimum(measure: Measure, cells: Cells, k: int, shared: bool) -> tuple[Steps, float, float]:
    """The cheapest K-level function that is constant on cells, its cost between cells, and rounding slack."""
    held = np.flatnonzero(cells.moments.mass > 0)
    order = held[np.argsort(cells.moments.mean[held], kind="stable")] if shared else held
    found = partition(cells.moments.mean[order], cells.moments.mass[order], k)
    groups = np.zeros(len(order), dtype=np.int64)
    groups[found.cuts] = 1
    groups = np.cumsum(groups)
    levels = cells.moments[order].merged(groups, len(found.cuts) + 1).mean
    if shared:
        steps = nearest_level_steps(measure.curve, levels)
    else:
        steps = contiguous_steps(
            measure.curve, Steps(cells.lo[order][found.cuts], np.arange(len(levels)), levels), levels
        )
    return steps, found.cost, found.slack


def _errors(activation: Activation, weight: Weight, domain: tuple[float, float], steps: Steps, bound: float) -> Errors:
    l2 = judge.l2_squared(activation, weight, domain, steps)
    largest, at = judge.linf(Curve(activation, *domain), steps)
    bound = min(_round_down(bound, BOUND_DIGITS), l2)
    return Errors(l2, largest, at, bound, (l2 - bound) / l2 if l2 else 0.0)


def _round_down(value: float, digits: int) -> float:
    """The largest float of `digits` significant digits that is not above `value`."""
    rounded = float(f"{value:.{digits - 1}e}")
    if rounded > value:
        rounded = float(f"{value - 10.0 ** (math.floor(math.log10(value)) - digits + 1):.{digits - 1}e}")
    return rounded
