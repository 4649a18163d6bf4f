"""The judge of a finished table: its errors from the definition alone, by ball arithmetic.

It uses nothing of the search.
"""

from collections.abc import Iterator
from typing import Any

import flint
import numpy as np

from actfit.fitting.activations import Activation
from actfit.fitting.activations.calculus import Piece
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.curve import Curve, Run
from actfit.fitting.fewbit.measure import Measure
from actfit.fitting.fewbit.steps import Steps
from actfit.fitting.weights import Weight

PRECISION = 128  # bits
FINER = (512, 4096)  # bits, where all digits of f' - q cancel
SHARP = 2.0**-56  # the relative radius of an enclosure that rounds to a single float64, but for a rare tie
WEIGHTED_DIGITS = 12
WEIGHTED_TOLERANCE = 1e-9  # relative: two quadratures, each to 1e-15 of the integral, of an error of 1e-6 of it


def l2_squared(activation: Activation, weight: Weight, domain: tuple[float, float], steps: Steps) -> float:
    """∫ (f' - q)² w: correctly rounded from a proven enclosure where w is constant.

    Elsewhere by quadrature, or sums, to `WEIGHTED_DIGITS`: the last ones differ between machines.
    """
    return l2_and_doubt(activation, weight, domain, steps)[0]


def l2_and_doubt(
    activation: Activation, weight: Weight, domain: tuple[float, float], steps: Steps
) -> tuple[float, float]:
    """`l2_squared`, and a bound on its error beyond rounding, as far as its own points of w show it."""
    curve = Curve(activation, *domain)
    if weight.height is None:
        measure = Measure(activation, weight, domain, independent=True)
        measure.cells(measure.first_spare(len(steps.levels)))
        return float(f"{steps.error(measure):.{WEIGHTED_DIGITS - 1}e}"), measure.doubt
    for precision in (PRECISION, *FINER):
        with flint.ctx.workprec(precision):
            total = weight.height * _total(curve, steps)
            if total.rad() <= SHARP * abs(total):
                return max(0.0, float(total)), 0.0
    raise InputError(f"the squared error cannot be enclosed, got {total.str(10)}; try another --domain")


def _total(curve: Curve, steps: Steps) -> Any:
    if curve.is_step:  # a value of f' such as 1/6 is rounded to float64, as levels are
        parts = ((b - a) * (run.first - y) ** 2 for run, a, b, y in pieces_of(curve, steps))
    else:
        parts = (squared_error(run.piece, a, b, y) for run, a, b, y in pieces_of(curve, steps))
    return sum(parts, flint.arb(0))


def squared_error(piece: Piece, lo: Any, hi: Any, level: Any) -> Any:
    """An enclosure of ∫ (f' - level)² from lo to hi."""

    def integrand(z: Any, _: bool) -> Any:
        return flint.acb(piece.d1.acb(z) - level) ** 2

    # The monotone f' - level is largest at one end, which sets the scale of the integral.
    ends = [abs(piece.d1.arb(end) - level) for end in (lo, hi)]
    if piece.d2.expression == 0:  # f' is constant: nothing to subdivide for
        return (hi - lo) * ends[0] ** 2
    tolerance = (hi - lo) * max(end.upper() for end in ends) ** 2 * flint.arb(2) ** -110
    total = flint.acb.integral(integrand, lo, hi, abs_tol=tolerance).real
    if total.is_finite():
        return total
    # No complex neighbourhood of an end has an image, such as that of a square root: its last 2^-120 apart.
    sliver = (hi - lo) * flint.arb(2) ** -120
    inner = flint.acb.integral(integrand, lo + sliver, hi - sliver, abs_tol=tolerance).real
    return inner + 2 * sliver * (ends[0] ** 2 + ends[1] ** 2).union(flint.arb(0))


def linf(curve: Curve, steps: Steps) -> tuple[float, float | None]:
    """sup |f' - q| over the domain and where; f' is monotone on runs, so the ends of their parts suffice."""
    worst, place = flint.arb(0), None
    with flint.ctx.workprec(PRECISION):
        for run, lo, hi, level in pieces_of(curve, steps):
            for at in (lo, hi):
                error = abs((flint.arb(run.first) if curve.is_step else run.piece.d1.arb(at)) - level)
                # Mirrored points tie; the factor makes the first of them win whatever the rounding.
                if error > worst * (1 + flint.arb(2) ** -60):
                    worst, place = error.mid(), at
    largest = float(worst)  # 0 also where it underflows, as in the far tail of gelu'
    return largest, float(place) if largest and place is not None else None


def pieces_of(curve: Curve, steps: Steps) -> Iterator[tuple[Run, Any, Any, Any]]:
    """Each part of a run on which q is constant: (run, lo, hi, level), the numbers as exact balls."""
    for run in curve.runs:
        inner = steps.borders[(run.lo < steps.borders) & (steps.borders < run.hi)]
        edges = [run.lo, *inner.tolist(), run.hi]
        levels = steps(np.array(edges[1:]))
        for lo, hi, level in zip(edges, edges[1:], levels.tolist(), strict=False):
            yield run, flint.arb(lo), flint.arb(hi), flint.arb(level)
