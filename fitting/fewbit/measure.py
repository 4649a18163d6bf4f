"""The weighted curve, and the cells of x that the search runs on."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from actfit.fitting.activations import Activation
from actfit.fitting.activations.tape import Array
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.curve import ROUNDING, Curve
from actfit.fitting.fewbit.moments import Moments, Quadrature, Samples, Source
from actfit.fitting.fewbit.scan import refined
from actfit.fitting.weights import Weight

CONVERGED = 1e-15  # a cell's doubt, relative to the whole integral, that is negligible
NARROWEST = 2.0**-46  # of |x|: below it a cell is not split again
TINIEST = 2.0**-80  # of the domain: below it the search for a bound of f' is given up
MAX_CELLS = 300_000
TOO_ROUGH = 1e-3  # of the mass, unaccounted for: as much as the gap that a fit is to prove
GOLDEN = (3 - math.sqrt(5)) / 2  # a cell cut there has no cell in common with its halvings


@dataclass(frozen=True)
class Cells:
    """A partition of the domain, in x order, fine enough to search on.

    f' stays within `width`/2 of `centre` on each cell; `bends` is a bound of |f''| where that is of one sign, else NaN;
    `doubt` bounds the quadrature error of the moments.
    """

    lo: Array
    hi: Array
    moments: Moments
    centre: Array
    width: Array
    bends: Array
    doubt: Array

    @property
    def low(self) -> Array:
        return self.centre - self.width / 2

    @property
    def high(self) -> Array:
        return self.centre + self.width / 2

    @property
    def spare(self) -> Array:
        """What a border inside the cell can gain over one at its end, for levels a unit apart (see certificate)."""
        mass = self.moments.mass
        measured: Array = np.sqrt(mass) * np.sqrt(self.moments.spread + self.doubt)
        proven: Array = np.multiply(mass, self.width / 2, out=np.zeros_like(mass), where=mass > 0)
        return np.fmin(measured, proven)


class Measure:
    """f' of an activation on a domain under a weight.

    independent: whether to use other cells, and other points of the weight, than the first measure.
    Raises `InputError` for a weight that is negative, not finite or zero on the domain, and for an f' that is not
    bounded there.
    """

    def __init__(
        self, activation: Activation, weight: Weight, domain: tuple[float, float], independent: bool = False
    ) -> None:
        self.activation, self.weight, self.domain = activation, weight, domain
        self.curve = Curve(activation, *domain)
        self.source: Source = (
            Quadrature(self.curve, weight) if weight.samples is None else Samples(self.curve, weight.samples)
        )
        edges, unclaimed = self._edges(independent)
        cells = self._measured(edges[:-1], edges[1:])
        self.mass = math.fsum(cells.moments.mass)  # a first estimate
        if not self.mass > 0:
            seen = "" if weight.spelling else "; where it is a narrow peak, give landmarks=... there"
            raise InputError(f"weight {weight.label} must not be zero on all of [{domain[0]:g}, {domain[1]:g}]{seen}")
        if unclaimed > TOO_ROUGH * self.mass:
            raise InputError(
                f"weight {weight.label} varies too fast to be integrated; give landmarks=... where it does, "
                "or draw samples from it and fit to them"
            )
        weighted = cells.moments.mass > 0
        # Under a narrow weight only a part of f' counts, and its scale.
        low = max(float(np.min(cells.low[weighted])), self.curve.low)
        high = min(float(np.max(cells.high[weighted])), self.curve.high)
        self.source.focus(low, high)
        self.top, self.span = max(abs(low), abs(high)), high - low
        self._cells = self._measured(edges[:-1], edges[1:])

    def _edges(self, independent: bool) -> tuple[Array, float]:
        """The edges of the first cells: ends of runs, landmarks, and more around features seen in the density.

        And how much of the mass seen there the rules on these cells do not account for.
        """
        lo, hi = self.domain
        marks = np.unique([lo, *(point for point in self.weight.landmarks if lo < point < hi), hi])
        edges = np.unique(np.concatenate([self.curve.edges, marks]))
        if self.weight.samples is not None or self.weight.height is not None:
            return edges, 0.0
        if independent:
            edges = np.unique(np.concatenate([edges, edges[:-1] + GOLDEN * np.diff(edges)]))
        if self.weight.spelling is not None:  # a named distribution: its landmarks are quantiles
            return edges, 0.0
        return refined(self.source.density, marks, edges, GOLDEN if independent else 0.5)

    @property
    def doubt(self) -> float:
        """A bound on the error of ∫ (f' - q)² w over the cells, for any q between the values of f'."""
        cells, rounding = self._cells, ROUNDING * self.top
        return math.fsum(cells.doubt) + rounding * (self.span + rounding) * math.fsum(cells.moments.mass)

    def _measured(self, lo: Array, hi: Array, bends: Array | None = None) -> Cells:
        runs = self.curve.run_at(hi)
        moments, doubt = self.source.doubted(lo, hi, runs)
        slack = ROUNDING * max(abs(self.curve.low), abs(self.curve.high))
        within = (self.curve.low - slack <= moments.mean) & (moments.mean <= self.curve.high + slack)
        if not within[moments.mass > 0].all():
            at, mean = (values[(moments.mass > 0) & ~within][0] for values in (lo, moments.mean))
            raise InputError(
                f"f' must be bounded on the domain and turn no oftener than is found, got a mean of {mean:.6g} near "
                f"x = {at:.6g}, though {self.curve.low:.6g} to {self.curve.high:.6g} where it turns; try --domain"
            )
        return Cells(lo, hi, moments, *self.source.ranges(lo, hi, runs, bends), doubt)

    def first_spare(self, k: int) -> float:
        """The first `spare` for `cells`, with k levels: small enough that the cells show every feature of f'."""
        return min(1e-5, 1e-2 / k**2) * self.mass * self.span

    def cells(self, spare: float, late: Callable[[], bool] | None = None) -> Cells:
        """Cells whose `spare` is at most the given one; smaller values refine the same cells.

        A cell may have more if it cannot be narrower, if there are `MAX_CELLS`, and once `late`.
        """
        while True:
            cells = self._cells
            if late is not None and late():
                return cells
            mid = cells.lo + (cells.hi - cells.lo) / 2
            narrow = cells.hi - cells.lo <= NARROWEST * np.maximum(abs(cells.lo), abs(cells.hi))
            narrow |= (mid <= cells.lo) | (cells.hi <= mid)
            weighted = cells.moments.mass > 0
            unbounded = weighted & ~(cells.width < math.inf)
            tiny = cells.hi - cells.lo <= TINIEST * (self.domain[1] - self.domain[0])
            stuck = unbounded & (narrow | tiny | (len(mid) >= MAX_CELLS))
            if stuck.any():
                self._cells = self._by_ends(cells, stuck)
                continue
            split = unbounded | (weighted & ~narrow & self._coarse(cells, spare))
            split &= np.cumsum(split) <= MAX_CELLS - len(mid)
            if not split.any():
                return cells
            lo, mid, hi = cells.lo[split], mid[split], cells.hi[split]
            bends = np.tile(cells.bends[split], 2)
            halves = self._measured(np.concatenate([lo, mid]), np.concatenate([mid, hi]), bends)
            self._cells = _joined(cells, ~split, halves)

    def _coarse(self, cells: Cells, spare: float) -> NDArray[np.bool_]:
        """Cells with too large a `spare`, or with doubtful moments.

        The nodes of the quadrature must agree with the proven width, which shows whether f' bends between two nodes.
        """
        seen = np.maximum(cells.spare, cells.moments.mass * cells.width / 4)
        wide = cells.width > 2 * ROUNDING * self.top
        return (wide & (seen > spare)) | (cells.doubt > CONVERGED * self.mass * self.top * self.span)

    def _by_ends(self, cells: Cells, stuck: NDArray[np.bool_]) -> Cells:
        """`cells`, where the range of f' on the `stuck` ones comes from its values at their ends, as f' is monotone.

        Needed at ends where f' is finite but has no enclosure on any ball that touches them, as for a square root.
        """
        lo, hi = cells.lo[stuck], cells.hi[stuck]
        runs = self.curve.run_at(hi)
        first, last = self.curve.derivatives(lo, runs), self.curve.derivatives(hi, runs)
        wrong = ~(np.isfinite(first) & np.isfinite(last))
        wrong[~wrong] = np.abs(last - first)[~wrong] > self.span / 64
        if wrong.any():
            at = lo[wrong][0]
            raise InputError(
                f"f' must be bounded on the domain, and vary no faster than float64 can tell; "
                f"no bound is found near x = {at:.6g}; try --domain"
            )
        centre, width = cells.centre.copy(), cells.width.copy()
        centre[stuck], width[stuck] = (first + last) / 2, 2 * np.abs(last - first)
        return replace(cells, centre=centre, width=width)

    def intervals(self, borders: Array) -> Moments:
        """Moments of the len(borders) + 1 intervals into which increasing `borders` cut the domain."""
        cells = self._cells
        cut = np.unique(np.searchsorted(cells.hi, borders, side="left"))
        whole = np.ones(cells.lo.size, dtype=np.bool_)
        whole[cut] = False
        points = np.unique(np.concatenate([cells.lo[cut], cells.hi[cut], borders]))
        lo, hi = points[:-1], points[1:]
        inside = ~whole[np.minimum(np.searchsorted(cells.hi, hi, side="left"), whole.size - 1)]
        lo, hi = lo[inside], hi[inside]
        parts = self.source.moments(lo, hi, self.curve.run_at(hi))
        groups = np.searchsorted(borders, np.concatenate([cells.hi[whole], hi]), side="left")
        return cells.moments[whole].joined(parts).merged(groups, borders.size + 1)


def _joined(cells: Cells, keep: NDArray[np.bool_], new: Cells) -> Cells:
    """The cells of `cells` under the mask `keep`, and all `new` ones, in x order."""
    order = np.argsort(np.concatenate([cells.lo[keep], new.lo]), kind="stable")

    def join(old: Array, fresh: Array) -> Array:
        return np.concatenate([old[keep], fresh])[order]

    moments = cells.moments[keep].joined(new.moments)
    return Cells(
        join(cells.lo, new.lo),
        join(cells.hi, new.hi),
        Moments(moments.mass[order], moments.mean[order], moments.spread[order]),
        join(cells.centre, new.centre),
        join(cells.width, new.width),
        join(cells.bends, new.bends),
        join(cells.doubt, new.doubt),
    )
