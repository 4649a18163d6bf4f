"""The last digits, in arithmetic that is the same on every machine.

numpy's exp differs in its last bit from one processor to the next, and a stored table must not. Under a
constant weight the mean of f' over an interval is a difference of f, so the equations of a stationary
point can be solved in 320-bit arithmetic; what is rounded to float64 at the end is then the same anywhere.
"""

import math
from itertools import pairwise
from typing import Any

import flint
import numpy as np

from actfit.fitting.activations.tape import Array
from actfit.fitting.fewbit.curve import Curve, Run
from actfit.fitting.fewbit.measure import Measure
from actfit.fitting.fewbit.refine import jacobian, solved
from actfit.fitting.fewbit.steps import Steps, tidy

PRECISION = 320  # bits
ROUNDS = 20
ENOUGH = 1e-75  # of max |f'|: so that a level of 1e-24, in a tail, has 16 digits too
SETTLED = 1e-40  # of the domain: Newton's next step for a border would be about the square of one below this
ZERO = 1e-60  # of the domain or max |f'|: numbers that are 0 by symmetry come out far below it
DIGITS = 12  # stored of a fit under other weights, which float64 solves to about 14
HELD_DIGITS = 15  # that every float64 has
NOISE = 1e-9  # relative: far above the rounding of an error, far below the extra error of another stationary point


def polish(measure: Measure, steps: Steps) -> Steps:
    """`steps` to the last bit where the weight is constant, else rounded to `DIGITS` significant digits.

    A result with a larger error, as after a Newton step to another stationary point, is discarded.
    """
    limit = steps.error(measure) * (1 + NOISE)
    exact = _solve(measure, steps) if measure.weight.height is not None else None
    # A border at a kink or jump of f' stays on it.
    kinks = np.isin(steps.borders, measure.curve.edges)
    rounded = np.where(kinks, steps.borders, trimmed(steps.borders)).tolist(), trimmed(steps.levels)
    for borders, levels in (exact, rounded) if exact else (rounded,):
        if all(a < b for a, b in pairwise([measure.curve.lo, *borders, measure.curve.hi])):
            polished = tidy(np.array(borders), steps.codes, np.array(levels))
            if polished.error(measure) <= limit:
                return polished
    return steps


def trimmed(values: Array) -> list[float]:
    """`values` to `DIGITS` digits of the range they span (of the value itself, if there is only one)."""
    largest = float(np.max(np.abs(values), initial=0.0)) or 1.0
    span = (float(np.ptp(values)) if len(values) else 0.0) or largest
    digits = min(DIGITS - 1 - math.floor(math.log10(span)), HELD_DIGITS - 1 - math.floor(math.log10(largest)))
    return [round(value, digits) + 0.0 for value in values.tolist()]


def _solve(measure: Measure, steps: Steps) -> tuple[list[float], list[float]] | None:
    """Borders and levels of the stationary point next to `steps`; None where Newton's method finds none."""
    curve = measure.curve
    derivative_matrix = jacobian(measure, steps)
    settled = SETTLED * (curve.hi - curve.lo)
    with flint.ctx.workprec(PRECISION):
        levels = [flint.arb(value) for value in steps.levels]
        borders = [flint.arb(value) for value in steps.borders]
        for _ in range(ROUNDS):
            runs = [curve.runs[i] for i in curve.run_at(np.array([float(at) for at in borders]))]
            middles = [(levels[a] + levels[b]) / 2 for a, b in pairwise(steps.codes)]
            borders = [_crossing(*border, settled) for border in zip(runs, middles, borders, strict=True)]
            means = _means(curve, steps, borders, levels)
            residual = [mean - level for mean, level in zip(means, levels, strict=True)]
            worst = max(float(abs(value)) for value in residual)
            if worst <= ENOUGH * measure.top:
                reach = max(abs(curve.lo), abs(curve.hi))
                return [_rounded(at, reach) for at in borders], [_rounded(y, measure.top) for y in levels]
            # Newton's correction in float64 of a residual scaled to 1: each round gains about ten digits.
            try:
                scaled = solved(derivative_matrix, np.array([float(value / worst) for value in residual]))
            except np.linalg.LinAlgError:
                return None
            levels = [(y + worst * flint.arb(float(move))).mid() for y, move in zip(levels, scaled, strict=True)]
    return None


def _rounded(value: Any, scale: float) -> float:
    return 0.0 if abs(value) < ZERO * scale else float(value)


def _crossing(run: Run, middle: Any, at: Any, settled: float) -> Any:
    """A border, moved to where f' equals the middle of its two levels; a border at a jump stays there."""
    if float(at) in (run.lo, run.hi) or run.flat:
        return at
    for _ in range(3):
        step = ((run.piece.d1.arb(at) - middle) / run.piece.d2.arb(at)).mid()
        at = (at - step).mid()
        if abs(step) < settled:
            break
    return at


def _means(curve: Curve, steps: Steps, borders: list[Any], levels: list[Any]) -> list[Any]:
    """The mean of f' over the set of each level: differences of f on runs, over lengths."""
    length, total = [flint.arb(0) for _ in levels], [flint.arb(0) for _ in levels]
    exact = dict(zip((float(at) for at in borders), borders, strict=True))
    for run in curve.runs:
        inner = sorted(at for at in exact if run.lo < at < run.hi)
        edges = [flint.arb(run.lo), *(exact[at] for at in inner), flint.arb(run.hi)]
        codes = steps.codes[np.searchsorted(list(exact), [*inner, run.hi], side="left")]
        values = map(run.piece.f.arb, edges)
        for (lo, hi), (first, last), code in zip(pairwise(edges), pairwise(values), codes, strict=True):
            length[code] += hi - lo
            total[code] += last - first
    return [(t / n).mid() if n > 0 else y for t, n, y in zip(total, length, levels, strict=True)]


def first_of_twins(measure: Measure, steps: Steps) -> Steps:
    """The one with the least borders of `steps` and those of its mirror images that a symmetry of f' makes as good.

    Which of them a search finds depends on rounding, and so on the machine.
    """
    mirror = steps.mirrored(measure.curve.lo + measure.curve.hi)
    twins = [mirror, mirror.flipped(measure.curve.runs[0].first + measure.curve.runs[-1].last)]
    limit = steps.error(measure) * (1 + NOISE)
    equals = [steps, *(twin for twin in twins if twin.error(measure) <= limit)]
    return min(equals, key=lambda q: np.round(q.borders / (measure.curve.hi - measure.curve.lo), 9).tolist())
