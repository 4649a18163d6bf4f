"""The curve x -> (f'(x), sqrt(λ) f(x)) under a weight, and the cells of x that the search runs on.

The error of a joint code at x is the squared distance of two points: the error of f', plus λ times that of f.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from actfit.fitting.activations import Activation
from actfit.fitting.activations.tape import Array
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.curve import ROUNDING, Indices
from actfit.fitting.fewbit.measure import CONVERGED, MAX_CELLS, NARROWEST, Measure
from actfit.fitting.fewbit.moments import DOUBT
from actfit.fitting.weights import Weight

RULE = special.roots_legendre(12)
CHECK = special.roots_legendre(8)  # estimates the error of RULE


@dataclass(frozen=True)
class Moments:
    """Mass, mean point (n, 2) and sum of squared distances from that mean, for each of n intervals."""

    mass: Array
    mean: Array
    spread: Array

    def merged(self, groups: Indices, count: int) -> "Moments":
        """The moments of unions of intervals: `groups[i]` in 0..count-1 says where interval i goes."""
        mass = np.bincount(groups, self.mass, count).astype(np.float64)
        total = np.column_stack([np.bincount(groups, self.mass * column, count) for column in self.mean.T])
        mean = np.divide(total, mass[:, np.newaxis], out=np.zeros_like(total), where=mass[:, np.newaxis] > 0)
        spread = np.bincount(groups, self.spread + self.mass * squared(self.mean - mean[groups]), count)
        return Moments(mass, mean, spread.astype(np.float64))


@dataclass(frozen=True)
class Cells:
    """A partition of the domain, in x order; each component of the curve is monotone on each cell."""

    # lo, hi: float64 (n,): their ends
    lo: Array
    hi: Array
    moments: Moments  # moments of the curve on each cell
    change: Array  # float64 (n, 2): the variation of each component on each cell
    doubt: Array  # float64 (n,): A bound on the quadrature error of the moments, in units of the error of a code

    @property
    def spread(self) -> Array:
        """An upper bound of the sum of squared distances from the mean, on each cell."""
        by_ends: Array = self.moments.mass * squared(self.change) / 4
        return np.fmin(self.moments.spread + self.doubt, by_ends)

    @property
    def spare(self) -> Array:
        """What a border inside the cell can gain over one at its end, for points a unit apart (see certificate)."""
        result: Array = np.sqrt(self.moments.mass) * np.sqrt(self.spread)
        return result

    def selected(self, index: NDArray[np.bool_] | Indices) -> "Cells":
        """The cells at `index`."""
        moments = Moments(*(values[index] for values in vars(self.moments).values()))
        return Cells(self.lo[index], self.hi[index], moments, self.change[index], self.doubt[index])

    def joined(self, other: "Cells") -> "Cells":
        """These and `other`, in x order."""

        def join(mine: Array, others: Array) -> Array:
            return np.concatenate([mine, others])

        moments = Moments(*map(join, vars(self.moments).values(), vars(other.moments).values()))
        pairs = ((self.lo, other.lo), (self.hi, other.hi), (self.change, other.change), (self.doubt, other.doubt))
        lo, hi, change, doubt = (join(*pair) for pair in pairs)
        return Cells(lo, hi, moments, change, doubt).selected(np.argsort(lo, kind="stable"))


class Plane:
    """The curve of an activation on a domain, under a weight that has a density.

    output_weight: λ: the factor of the error of f beside that of f'.
    independent: whether to use other cells than the first plane.
    Raises `InputError` as `Measure` does, and for an f that is not bounded on the domain.
    """

    def __init__(
        self,
        activation: Activation,
        output_weight: float,
        weight: Weight,
        domain: tuple[float, float],
        independent: bool = False,
    ) -> None:
        measure = self._start(activation, output_weight, weight, domain, independent)
        seen = measure.cells(measure.first_spare(2))  # fine enough for all features of f' and the weight
        turns = [at for _, places in self.curve.crossings(np.zeros(1)) for at in places.tolist()]  # of f
        edges = np.unique(np.concatenate([seen.lo, seen.hi, turns]))
        self._span(self.points(edges, self.curve.run_at(edges)))
        self._cells = self._measured(edges[:-1], edges[1:])
        self.mass = math.fsum(self._cells.moments.mass)
        joints = self.curve.edges[1:-1]
        runs = self.curve.run_at(joints)
        self.leaps = self.points(joints, runs + 1) - self.points(joints, runs)

    def _start(
        self,
        activation: Activation,
        output_weight: float,
        weight: Weight,
        domain: tuple[float, float],
        independent: bool = False,
    ) -> Measure:
        """Set the attributes that `points` needs; the measure of f' alone."""
        self.activation, self.weight, self.domain = activation, weight, domain
        measure = Measure(activation, weight, domain, independent)
        self.curve, self.density = measure.curve, measure.source.density
        self.root = math.sqrt(output_weight)
        return measure

    def _span(self, points: Array) -> None:
        """Set the centre of the points' bounding box, half its diagonal, and its greatest distance from 0."""
        if not np.isfinite(points).all():
            raise InputError(f"f must be finite on the domain, got {self.activation.name}, which is not; try --domain")
        low, high = points.min(axis=0), points.max(axis=0)
        self.centre, self.reach = (low + high) / 2, math.hypot(*(high - low)) / 2
        self.top = math.hypot(*np.maximum(np.abs(low), np.abs(high)))

    def points(self, x: Array, runs: Indices) -> Array:
        """(f', sqrt(λ) f) at `x`, each row evaluated on its run of `runs`: one axis more, of length 2."""
        return np.stack([self.curve.derivatives(x, runs), self.root * self.curve.values(x, runs)], axis=-1)

    def tangents(self, x: Array, runs: Indices) -> Array:
        """Their derivatives (f'', sqrt(λ) f')."""
        return np.stack([self.curve.second_derivatives(x, runs), self.root * self.curve.derivatives(x, runs)], axis=-1)

    @property
    def doubt(self) -> float:
        """A bound on the error of ∫ |curve - q|² w over the cells, for any q in the curve's range."""
        rounding = ROUNDING * self.top
        return math.fsum(self._cells.doubt) + rounding * (2 * self.reach + rounding) * self.mass

    def _measured(self, lo: Array, hi: Array) -> Cells:
        runs = self.curve.run_at(hi)
        moments, sums = self._rule(lo, hi, RULE)
        _, check = self._rule(lo, hi, CHECK)
        mass, first, second = (np.abs(by_rule - by_check) for by_rule, by_check in zip(sums, check, strict=True))
        doubt = DOUBT * (second + 2 * self.reach * np.hypot(*first.T) + self.reach**2 * mass)
        change = np.abs(self.points(hi, runs) - self.points(lo, runs))
        return Cells(lo, hi, moments, change + ROUNDING * self.top, doubt)

    def nodes(self, lo: Array, hi: Array, rule: tuple[Array, Array] = RULE) -> tuple[Array, Array, Array]:
        """x, mass (n, m) and point (n, m, 2) at the m nodes of a rule on n intervals, each inside a run."""
        half = (hi - lo)[:, np.newaxis] / 2
        x = lo[:, np.newaxis] + half * (1 + rule[0])
        return x, half * rule[1] * self.density(x), self.points(x, self.curve.run_at(hi))

    def _rule(self, lo: Array, hi: Array, rule: tuple[Array, Array]) -> tuple[Moments, tuple[Array, Array, Array]]:
        """The moments, and the sums of w, (curve - centre) w and |curve - centre|² w that the rule gives."""
        _, masses, points = self.nodes(lo, hi, rule)
        points = points - self.centre
        mass, first = masses.sum(axis=1), np.einsum("ij,ijk->ik", masses, points)
        mean = np.divide(first, mass[:, np.newaxis], out=points.mean(axis=1), where=mass[:, np.newaxis] > 0)
        spread = np.sum(masses * squared(points - mean[:, np.newaxis]), axis=1)
        second = np.sum(masses * squared(points), axis=1)
        return Moments(mass, mean + self.centre, spread), (mass, first, second)

    def cells(self, spare: float) -> Cells:
        """Cells whose `spare` is at most the given one, and whose moments are not doubtful; at most `MAX_CELLS`.

        Later calls refine the same cells.
        """
        while True:
            cells = self._cells
            mid = cells.lo + (cells.hi - cells.lo) / 2
            narrow = cells.hi - cells.lo <= NARROWEST * np.maximum(abs(cells.lo), abs(cells.hi))
            # The nodes of the quadrature must agree with the change between the ends.
            seen = np.maximum(cells.spare, cells.moments.mass * np.hypot(*cells.change.T) / 4)
            split = (seen > spare) & (cells.change.max(axis=1) > 4 * ROUNDING * self.top)
            split |= cells.doubt > CONVERGED * self.mass * self.reach**2
            split &= ~narrow
            split &= np.cumsum(split) <= MAX_CELLS - len(mid)
            if not split.any():
                return cells
            lo, middle, hi = cells.lo[split], mid[split], cells.hi[split]
            halves = self._measured(np.concatenate([lo, middle]), np.concatenate([middle, hi]))
            self._cells = cells.selected(~split).joined(halves)

    def intervals(self, borders: Array) -> Moments:
        """Moments of the len(borders) + 1 intervals into which increasing `borders` cut the domain."""
        cells = self._cells
        cut = np.unique(np.searchsorted(cells.hi, borders, side="left"))
        whole = np.ones(cells.lo.size, dtype=np.bool_)
        whole[cut] = False
        ends = np.unique(np.concatenate([cells.lo[cut], cells.hi[cut], borders]))
        lo, hi = ends[:-1], ends[1:]
        inside = ~whole[np.minimum(np.searchsorted(cells.hi, hi, side="left"), whole.size - 1)]
        parts = cells.selected(whole).joined(self._measured(lo[inside], hi[inside]))
        return parts.moments.merged(np.searchsorted(borders, parts.hi, side="left"), borders.size + 1)


def squared(vectors: Array) -> Array:
    """|v|² of each v along the last axis."""
    result: Array = np.sum(vectors * vectors, axis=-1)
    return result
