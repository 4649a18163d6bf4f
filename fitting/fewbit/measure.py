"""The weighted curve, and the cells of x that the search runs on."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fitting.activations import Activation
from fitting.activations.tape import Array
from fitting.errors import InputError
from fitting.fewbit.curve import Curve
from fitting.fewbit.moments import Moments, Quadrature, Samples, Source
from fitting.fewbit.weights import Weight

CONVERGED = 1e-15  # two Gauss rules may differ by this, relative to the whole integral, in one cell
NARROWEST = 2.0**-46  # of the domain: below it a cell is not split again


@dataclass(frozen=True)
class Cells:
    """A partition of the domain, in x order, fine enough to search on.

    f' stays within `width`/2 of `centre` on each cell; `doubt` bounds the quadrature error of its moments.
    """

    lo: Array
    hi: Array
    moments: Moments
    centre: Array
    width: Array
    doubt: Array

    @property
    def spare(self) -> Array:
        """What a border inside the cell can gain over one at its end, for levels a unit apart (see certificate)."""
        return np.sqrt(self.moments.mass * self.moments.spread)


class Measure:
    """f' of an activation on a domain under a weight.

    Raises `InputError` for a weight that is negative, not finite or zero on the domain, and for an f' that
    is not bounded there.
    """

    def __init__(self, activation: Activation, weight: Weight, domain: tuple[float, float]) -> None:
        self.activation, self.weight, self.domain = activation, weight, domain
        self.curve = Curve(activation, *domain)
        self.top = max(abs(end) for run in self.curve.runs for end in (run.first, run.last))
        self.source: Source = (
            Quadrature(self.curve, weight) if weight.samples is None else Samples(self.curve, weight.samples)
        )
        inner = [point for point in weight.landmarks if domain[0] < point < domain[1]]
        edges = np.unique(np.concatenate([self.curve.edges, inner]))
        self._cells = self._measured(edges[:-1], edges[1:])
        if not math.fsum(self._cells.moments.mass) > 0:
            raise InputError(f"weight {weight.label} must not be zero on all of [{domain[0]:g}, {domain[1]:g}]")

    def _measured(self, lo: Array, hi: Array) -> Cells:
        runs = self.curve.run_at(hi)
        moments, doubt = self.source.moments(lo, hi, runs)
        return Cells(lo, hi, moments, *self.source.ranges(lo, hi, runs), doubt)

    def cells(self, spare: float) -> Cells:
        """Cells none of which has more than `spare` to spare; smaller values refine the same cells."""
        while True:
            cells = self._cells
            total = math.fsum(cells.moments.mass) * max(1.0, self.top) ** 2
            unbounded = ~(cells.width < math.inf)
            split = (cells.spare > spare) | (cells.doubt > CONVERGED * total) | unbounded
            split &= cells.moments.mass > 0
            narrow = cells.hi - cells.lo <= NARROWEST * (self.domain[1] - self.domain[0])
            if np.any(split & narrow & unbounded):
                at = cells.lo[split & narrow & unbounded][0]
                raise InputError(f"f' must be bounded on the domain, and is not near x = {at:.6g}; try --domain")
            split &= ~narrow
            if not split.any():
                return cells
            lo, hi = cells.lo[split], cells.hi[split]
            mid = lo + (hi - lo) / 2
            halves = self._measured(np.concatenate([lo, mid]), np.concatenate([mid, hi]))
            self._cells = _joined(cells, ~split, halves)

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
        parts, _ = self.source.moments(lo, hi, self.curve.run_at(hi))
        groups = np.searchsorted(borders, np.concatenate([cells.hi[whole], hi]), side="left")
        return cells.moments[whole].joined(parts).merged(groups, borders.size + 1)


def _joined(cells: Cells, keep: NDArray[np.bool_], new: Cells) -> Cells:
    """The kept ones of `cells` and all `new` ones, in x order."""
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
        join(cells.doubt, new.doubt),
    )
