"""Mass, mean and spread of f' over intervals of x, under a density (by quadrature) or over samples (by sums).

All spreads are sums of squares about a mean: nothing here subtracts two large numbers.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from actfit.fitting.activations.tape import Array
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.chunks import chunks
from actfit.fitting.fewbit.curve import Curve, Indices
from actfit.fitting.weights import Weight

_ROOTS, _WEIGHTS = special.roots_legendre(12)
_CHECK_ROOTS, _CHECK_WEIGHTS = special.roots_legendre(8)
# The error of the better rule is at most so many times the difference of both: for smooth functions far less than
# once, at the end of x**-s 1/(1.5**(2 - 2s) - 1) times, 12 for s = 0.9.
DOUBT = 16


@dataclass(frozen=True)
class Moments:
    """Mass, mean of f' and sum of squared deviations from that mean, for each of n intervals."""

    mass: Array
    mean: Array
    spread: Array

    def __getitem__(self, index: NDArray[np.bool_] | Indices) -> "Moments":
        return Moments(self.mass[index], self.mean[index], self.spread[index])

    def joined(self, *others: "Moments") -> "Moments":
        """These intervals and then those of the others."""
        columns = zip(*((part.mass, part.mean, part.spread) for part in (self, *others)), strict=True)
        return Moments(*map(np.concatenate, columns))

    def merged(self, groups: Indices, count: int) -> "Moments":
        """The moments of unions of intervals: `groups[i]` in 0..count-1 says where interval i goes."""
        mass = np.bincount(groups, self.mass, count).astype(np.float64)
        first, weighted = np.zeros(count), np.flatnonzero(self.mass > 0)[::-1]
        first[groups[weighted]] = self.mean[
            weighted
        ]  # means are taken about it, so that those of equal values are exact
        total = np.bincount(groups, self.mass * (self.mean - first[groups]), count)
        mean = first + np.divide(total, mass, out=np.zeros(count), where=mass > 0)
        spread = np.bincount(groups, self.spread + self.mass * (self.mean - mean[groups]) ** 2, count)
        return Moments(mass, mean, spread.astype(np.float64))

    def error(self, levels: Array) -> float:
        """∫ (f' - level)² w, with one level for each interval."""
        return math.fsum(self.spread) + math.fsum(self.mass * (self.mean - levels) ** 2)


class Source(Protocol):
    """Computes moments. Intervals are (lo, hi], each inside one run of the curve."""

    def moments(self, lo: Array, hi: Array, runs: Indices) -> Moments:
        """The moments."""

    def doubted(self, lo: Array, hi: Array, runs: Indices) -> tuple[Moments, Array]:
        """The moments, and for each interval a bound on the error of ∫ (f' - y)² w, for any y in the focus."""

    def focus(self, low: float, high: float) -> None:
        """Set the range of f' where there is mass; at first it is that of all its values."""

    def ranges(self, lo: Array, hi: Array, runs: Indices, bends: Array | None = None) -> tuple[Array, Array, Array]:
        """(centre, width) of an interval that holds every value of f' that counts; bends as in `Curve.ranges`."""

    def density(self, points: Array) -> Array:
        """w at `points`; 0 where there is none."""


class Quadrature:
    """Moments under a density: Gauss-Legendre rules of 12 points, and of 8 to estimate the error."""

    def __init__(self, curve: Curve, weight: Weight) -> None:
        self.curve, self.weight = curve, weight
        self.focus(curve.low, curve.high)

    def focus(self, low: float, high: float) -> None:
        self.reach = (high - low) / 2  # |y - centre| for any y between
        self.centre = low + self.reach

    def moments(self, lo: Array, hi: Array, runs: Indices) -> Moments:
        with np.errstate(all="ignore"):  # an unbounded f' is refused later, by the ranges
            return self._moments(*self._rule(lo, hi, runs, _ROOTS, _WEIGHTS))

    def doubted(self, lo: Array, hi: Array, runs: Indices) -> tuple[Moments, Array]:
        parts = [self._doubted(lo[part], hi[part], runs[part]) for part in chunks(len(lo))]
        moments, doubts = zip(*parts, strict=True)
        return Moments.joined(*moments), np.concatenate(doubts)

    def _doubted(self, lo: Array, hi: Array, runs: Indices) -> tuple[Moments, Array]:
        with np.errstate(all="ignore"):
            masses, values, sums = self._rule(lo, hi, runs, _ROOTS, _WEIGHTS)
            *_, check = self._rule(lo, hi, runs, _CHECK_ROOTS, _CHECK_WEIGHTS)
            mass, first, second = np.abs(sums - check)
            doubt: Array = DOUBT * (second + 2 * self.reach * first + self.reach**2 * mass)
            return self._moments(masses, values, sums), doubt

    def _moments(self, masses: Array, values: Array, sums: Array) -> Moments:
        """The moments that a rule gives."""
        mean = np.divide(sums[1], sums[0], out=values.mean(axis=1), where=sums[0] > 0)
        spread = (masses * (values - mean[:, None]) ** 2).sum(axis=1)
        return Moments(sums[0], mean + self.centre, spread)

    def _rule(self, lo: Array, hi: Array, runs: Indices, roots: Array, weights: Array) -> tuple[Array, Array, Array]:
        """Masses and f' - centre at the nodes of a rule; the sums of w, (f' - centre) w and (f' - centre)² w."""
        half = (hi - lo)[:, None] / 2
        points = lo[:, None] + half * (1 + roots)
        values = self.curve.derivatives(points, runs) - self.centre
        masses = half * weights * self.density(points)
        sums = np.stack([masses.sum(axis=1), (masses * values).sum(axis=1), (masses * values**2).sum(axis=1)])
        return masses, values, sums

    def ranges(self, lo: Array, hi: Array, runs: Indices, bends: Array | None = None) -> tuple[Array, Array, Array]:
        return self.curve.ranges(lo, hi, runs, bends)

    def density(self, points: Array) -> Array:
        """w at `points`. Raises `InputError` where it is negative or not finite."""
        if self.weight.density is None:
            raise TypeError(f"weight {self.weight.label} has no density")
        with np.errstate(all="ignore"):
            values = np.broadcast_to(np.asarray(self.weight.density(points), dtype=np.float64), points.shape)
        for bad, rule in ((~np.isfinite(values), "finite"), (values < 0, "at least 0")):
            if bad.any():
                at, value = points[bad][0], values[bad][0]
                label = self.weight.label
                raise InputError(f"weight {label} must be {rule} on the domain, got {value} at x = {at:g}")
        return values


class Samples:
    """Moments over recorded values: exact sums. Raises `InputError` where none lies in the domain.

    At a kink f' is the left derivative, as q's intervals are closed on the right.
    """

    def __init__(self, curve: Curve, samples: Array) -> None:
        inside = samples[(samples >= curve.lo) & (samples <= curve.hi)]
        if not inside.size:
            raise InputError(f"samples must lie in the domain, got none in [{curve.lo:g}, {curve.hi:g}]")
        self.start = curve.lo
        self.points, counts = np.unique(inside, return_counts=True)
        self.mass: Array = counts / samples.size
        self.values = curve.derivatives(self.points, curve.run_at(self.points))

    def focus(self, low: float, high: float) -> None:
        pass  # exact sums do not use it

    def _slices(self, lo: Array, hi: Array) -> list[slice]:
        """Which samples lie in each (lo, hi]; the domain's first point belongs to the first interval."""
        first = np.where(lo == self.start, 0, np.searchsorted(self.points, lo, side="right"))
        last = np.searchsorted(self.points, hi, side="right")
        return [slice(a, b) for a, b in zip(first.tolist(), last.tolist(), strict=True)]

    def moments(self, lo: Array, hi: Array, runs: Indices) -> Moments:
        moments = Moments(np.zeros_like(lo), np.zeros_like(lo), np.zeros_like(lo))
        # A loop, for reduceat cannot sum an empty slice, and differences of cumulative sums would cancel.
        for i, part in enumerate(self._slices(lo, hi)):
            if part.start < part.stop:
                mass, values = self.mass[part], self.values[part]
                moments.mass[i] = mass.sum()
                moments.mean[i] = values[0] + (mass * (values - values[0])).sum() / moments.mass[i]
                moments.spread[i] = (mass * (values - moments.mean[i]) ** 2).sum()
        return moments

    def doubted(self, lo: Array, hi: Array, runs: Indices) -> tuple[Moments, Array]:
        return self.moments(lo, hi, runs), np.zeros_like(lo)

    def ranges(self, lo: Array, hi: Array, runs: Indices, bends: Array | None = None) -> tuple[Array, Array, Array]:
        centre, width = np.zeros_like(lo), np.zeros_like(lo)
        for i, part in enumerate(self._slices(lo, hi)):
            if part.start < part.stop:
                low, high = self.values[part].min(), self.values[part].max()
                centre[i], width[i] = (low + high) / 2, high - low
        return centre, width, np.full(lo.shape, math.nan)  # bends: not used over samples

    def density(self, points: Array) -> Array:
        return np.zeros_like(points)
