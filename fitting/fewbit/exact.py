"""The cells of a certificate under a constant weight, without estimates: all in ball arithmetic.

The bound of `certificate` needs of each cell its mass μ, the mean p of f', a range that holds f' and an upper bound of
its spread σ; and of all cells together a lower bound of the sum of σ.

- μ is the cell's length, and p the mean of the polynomials by which `panels` approximates f'.
- Where f'' has one sign on a cell, f' lies between its values at the ends, which these polynomials give, too.
  Elsewhere, with |f''| <= L, it lies within L·h/2 of them, h being the cell's length; where no L is found, the
  enclosure of f' itself serves.
- σ <= μ (L·h)² / 12. For two independent points X, Y of the cell, 2σ/μ is the mean of (f'(X) - f'(Y))², which is at
  most L² times that of (X - Y)², and that is h² / 6.
- The sum of σ is ∫ (f' - c)² w - Σ μ (p - c)², for any c. The integral is that of `judge`, with proven error.

A mean is known to some r; for any level y between the values of f', whose span is S, that changes μ (p - y)² by at most
2 μ r (S + r). This is subtracted twice, for c and for the levels, and with it what the rounding of masses and sums can
do, a few eps of Σ μ S².
"""

import math
from functools import cached_property

import flint
import numpy as np

from actfit.fitting.activations.balls import above, below
from actfit.fitting.activations.tape import Array
from actfit.fitting.fewbit import judge
from actfit.fitting.fewbit.curve import Run, hull
from actfit.fitting.fewbit.measure import Cells, Measure
from actfit.fitting.fewbit.moments import Moments
from actfit.fitting.fewbit.panels import EPS, Panels, panels_of


class ExactCells:
    """The cells of `measure`, made exact; for a weight whose `height` is a number.

    Parameters
    ----------
    measure : Measure
        Of a constant weight.
    """

    def __init__(self, measure: Measure) -> None:
        if measure.weight.height is None:
            raise TypeError(f"weight {measure.weight.label} is not constant")
        self.curve, self.height = measure.curve, measure.weight.height
        self.centre = (self.curve.low + self.curve.high) / 2
        self.reach = (self.curve.high - self.curve.low) / 2

    @cached_property
    def works(self) -> bool:
        """Whether f' has enclosures everywhere; it has none at the end of a square root, for instance."""
        return None not in self._panels and math.isfinite(self._total)

    @cached_property
    def _total(self) -> float:
        """A lower bound of ∫ (f' - centre)² w."""
        with flint.ctx.workprec(judge.PRECISION):
            ends = ((run, flint.arb(run.lo), flint.arb(run.hi)) for run in self.curve.runs)
            squares = (judge.squared_error(run.piece, lo, hi, flint.arb(self.centre)) for run, lo, hi in ends)
            total = self.height * sum(squares, flint.arb(0))
            return below(total) if total.is_finite() else math.nan

    @cached_property
    def _panels(self) -> list[Panels | None]:
        return [panels_of(run, self.centre, self.reach) for run in self.curve.runs]

    def of(self, cells: Cells) -> tuple[Cells, float]:
        """The cells with proven moments and ranges, and a lower bound of the sum of their spreads, less all doubts.

        The `spread` of each is an upper bound.
        """
        known = [self._on_run(run, panels, cells) for run, panels in zip(self.curve.runs, self._panels, strict=True)]
        away, radius, low, high, bends = (np.concatenate(column) for column in zip(*known, strict=True))
        mass, mean, centre = self.height * (cells.hi - cells.lo), self.centre + away, (low + high) / 2
        radius += EPS * np.abs(mean)
        width = (high - low) * (1 + 4 * EPS) + 4 * EPS * np.abs(centre)
        deviation = np.minimum(width / 2, bends * (cells.hi - cells.lo) / math.sqrt(12)) * (1 + 8 * EPS)
        span = float(high.max() - low.min())
        between = math.fsum(mass * away**2)
        doubt = 4 * math.fsum(mass * radius * (span + radius)) + 16 * EPS * math.fsum(mass) * span**2
        moments = Moments(mass, mean, mass * deviation**2)
        exact = Cells(cells.lo, cells.hi, moments, centre, width, cells.bends, np.zeros_like(mass))
        return exact, self._total - between - doubt

    def _on_run(self, run: Run, panels: Panels | None, cells: Cells) -> tuple[Array, ...]:
        """For the cells in `run`: mean of f' less `centre` and its radius, the ends of f' and a bound of |f''|."""
        if panels is None:
            raise TypeError("the run has no panels")
        inside = (run.lo <= cells.lo) & (cells.hi <= run.hi)
        lo, hi, bends = cells.lo[inside], cells.hi[inside], cells.bends[inside]
        parts = panels.parts(lo, hi)
        away, radius = panels.averages(parts, self.reach)
        at, first = parts.panel, np.searchsorted(parts.left, lo)
        last = np.append(first[1:], parts.left.size) - 1
        starts, stops = panels.at(lo, at[first]), panels.at(hi, at[last])
        doubt = np.maximum(panels.radius[at[first]], panels.radius[at[last]])
        low, high = self.centre + np.minimum(starts, stops) - doubt, self.centre + np.maximum(starts, stops) + doubt
        for i in np.flatnonzero(~(bends >= 0)).tolist():
            low[i], high[i], bends[i] = _turning(run, lo[i], hi[i], low[i], high[i])
        return away, radius, low, high, bends


def _turning(run: Run, lo: float, hi: float, low: float, high: float) -> tuple[float, float, float]:
    """The range of f' over a cell where the sign of f'' is not known, and a bound of |f''| (inf: none).

    At its ends f' lies between `low` and `high`.
    """
    bend = run.piece.d2.arb(hull(lo, hi))
    if not bend.is_finite():
        derivative = run.piece.d1.arb(hull(lo, hi))
        return below(derivative), above(derivative), math.inf
    steepest = above(abs(bend))
    reach = steepest * (hi - lo) / 2 * (1 + 4 * EPS)
    return low - reach, high + reach, steepest
