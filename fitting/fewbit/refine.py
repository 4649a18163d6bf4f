"""From the best borders on a grid to a stationary point of the continuous problem (the paper's eq. 5).

The unknowns are the levels; the borders follow from them. At a stationary point every level is the mean of
f' over the x that use it: y = m(y). Newton's method on that equation converges in a few steps; where it
would not lower the error, one step of Lloyd's iteration y <- m(y), which never raises it, is taken instead.
For samples, which have no density, the two are the same.

A border that moves lies between two successive levels, so the system is tridiagonal. A dense solver would take longer
than all the rest with 256 levels, as NumPy's runs on all cores, which wait for each other where others use them.
"""

from collections.abc import Callable

import numpy as np
from scipy.linalg import solve_banded

from actfit.fitting.activations.tape import Array
from actfit.fitting.fewbit.measure import Measure
from actfit.fitting.fewbit.steps import Steps, contiguous_steps, nearest_level_steps

MAX_ROUNDS = 200
DAMPED = (1.0, 0.5, 0.125)  # the parts of Newton's step that are tried
SETTLED = 4 * np.finfo(np.float64).eps  # a change of levels by less than this, times max |f'|, is rounding
NEAR = 1e-9  # Newton's steps at least halve a residual; a residual below this that is not halved is noise


def refine(measure: Measure, steps: Steps, shared: bool) -> Steps:
    """A stationary point at least as good as `steps`, of the same structure (order, kind)."""

    def rebuilt(levels: Array) -> Steps:
        if shared:
            return nearest_level_steps(measure.curve, np.sort(levels))
        return contiguous_steps(measure.curve, steps, levels)

    error, last = steps.error(measure), np.inf
    for _ in range(MAX_ROUNDS):
        means = _means(measure, steps)
        residual = float(np.max(np.abs(means - steps.levels), initial=0.0))
        if residual <= SETTLED * measure.top or last / 2 < residual <= NEAR * measure.span:
            break
        last = residual
        better = _improve(measure, steps, means, error, rebuilt)
        if better is None:
            break
        steps, error = better
    return steps


def _improve(
    measure: Measure, steps: Steps, means: Array, error: float, rebuilt: Callable[[Array], Steps]
) -> tuple[Steps, float] | None:
    """The first of Newton's step, parts of it and Lloyd's step that does not raise the error."""
    residual = means - steps.levels
    try:
        newton = solved(jacobian(measure, steps), residual)
        moves = [*(newton * part for part in DAMPED), residual]
    except np.linalg.LinAlgError:
        moves = [residual]
    for move in moves:
        if not np.isfinite(move).all():
            continue
        candidate = rebuilt(steps.levels + move)
        if len(candidate.levels) == len(steps.levels):
            reached = candidate.error(measure)
            if reached <= error * (1 + SETTLED):
                return candidate, reached
    return None


def _means(measure: Measure, steps: Steps) -> Array:
    moments = steps.moments(measure)
    return np.where(moments.mass > 0, moments.mean, steps.levels)


def solved(band: Array, residual: Array) -> Array:
    """The solution of a tridiagonal system, from `jacobian`. Raises LinAlgError where it is singular."""
    result: Array = solve_banded((1, 1), band, residual, check_finite=False)
    return result


def jacobian(measure: Measure, steps: Steps) -> Array:
    """d(y - m(y))/dy, a tridiagonal K×K matrix, as the (3, K) array of its diagonals that SciPy takes.

    A border x between levels a and b sits where f'(x) = (a+b)/2, so it moves by 1/(2 f''(x)) for a unit of
    either; moving it hands mass w(x) from one level's set to the other's.
    """
    curve, (left, right) = measure.curve, (steps.codes[:-1], steps.codes[1:])
    runs = curve.run_at(steps.borders)
    gap = steps.levels[right] - steps.levels[left]
    miss = curve.derivatives(steps.borders, runs) - (steps.levels[left] + steps.levels[right]) / 2
    bend = curve.second_derivatives(steps.borders, runs)
    movable = (np.abs(miss) <= 1e-6 * measure.span) & np.isfinite(bend) & (bend != 0)
    movable &= np.abs(right - left) == 1  # at a jump of f' levels may be passed over; such a border stays
    with np.errstate(over="ignore"):  # a border where f' is all but flat: Newton's step then fails, not Lloyd's
        term = np.divide(measure.source.density(steps.borders) * gap, 4 * bend, out=np.zeros_like(gap), where=movable)
    mass = steps.moments(measure).mass
    band = np.zeros((3, len(steps.levels)))
    band[1] = 1.0
    for row in (left, right):
        share = np.divide(term, mass[row], out=np.zeros_like(term), where=mass[row] > 0)
        for column in (left, right):
            inside = movable | (row == column)  # where neither holds, the share is 0
            np.subtract.at(band, (1 + row[inside] - column[inside], column[inside]), share[inside])
    return band
