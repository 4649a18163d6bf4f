"""A piecewise-constant function with few levels, and how levels and borders follow from each other."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from actfit.fitting.activations.tape import Array
from actfit.fitting.fewbit.curve import Curve, Indices
from actfit.fitting.fewbit.measure import Measure
from actfit.fitting.fewbit.moments import Moments


@dataclass(frozen=True)
class Steps:
    """q(x) = levels[codes[i]] for borders[i-1] < x <= borders[i]."""

    borders: Array  # float64 (n - 1,): increasing: the borders between n intervals
    codes: Indices  # int64 (n,): the code of each interval
    levels: Array  # float64: increasing

    def __call__(self, points: Array) -> Array:
        """q at `points`."""
        return self.levels[self.codes[np.searchsorted(self.borders, points, side="left")]]

    def mirrored(self, twice: float = 0.0) -> "Steps":
        """q(twice - x)."""
        return Steps(twice - self.borders[::-1], self.codes[::-1], self.levels)

    def flipped(self, twice: float) -> "Steps":
        """twice - q(x)."""
        return Steps(self.borders, len(self.levels) - 1 - self.codes, twice - self.levels[::-1])

    def unfolded(self) -> "Steps":
        """q(|x|), from a q on x >= 0."""
        return Steps(
            np.concatenate([-self.borders[::-1], self.borders]),
            np.concatenate([self.codes[::-1], self.codes[1:]]),
            self.levels,
        )

    def moments(self, measure: Measure) -> Moments:
        """The moments of the set of x that uses each level."""
        return measure.intervals(self.borders).merged(self.codes, len(self.levels))

    def error(self, measure: Measure) -> float:
        """∫ (f' - q)² w."""
        return measure.intervals(self.borders).error(self.levels[self.codes])


def tidy(borders: Array, codes: Indices, levels: Array) -> Steps:
    """Steps with levels sorted, equal and unused levels merged or dropped, and equal neighbours joined."""
    used, compact = np.unique(codes, return_inverse=True)
    sorted_levels, rank = np.unique(levels[used], return_inverse=True)
    codes = rank[compact]
    keep = codes[1:] != codes[:-1]
    return Steps(borders[keep], np.concatenate([codes[:1], codes[1:][keep]]).astype(np.int64), sorted_levels)


def nearest_level_steps(curve: Curve, levels: Array) -> Steps:
    """The best q with these increasing levels: each x uses the level nearest to f'(x)."""
    middles = (levels[1:] + levels[:-1]) / 2
    borders: list[float] = []
    codes: list[int] = []
    for run, (_, positions) in zip(curve.runs, curve.crossings(middles), strict=True):
        rising = run.last > run.first
        start = int(np.searchsorted(middles, run.first, side="right" if rising else "left"))
        if codes:
            borders.append(run.lo)
        borders.extend(positions)
        codes.extend(start + step if rising else start - step for step in range(len(positions) + 1))
    return tidy(np.array(borders), np.array(codes, dtype=np.int64), levels)


def contiguous_steps(curve: Curve, steps: Steps, levels: Array) -> Steps:
    """`steps` with each border moved to the nearest place, between its neighbours, that suits `levels`.

    The place is where f' passes the middle of the two levels, by a crossing or by a jump, in the right sense;
    where there is none the border stays. `levels` has one entry for each interval, in x order.
    """
    middles = (levels[1:] + levels[:-1]) / 2
    upward = levels[1:] > levels[:-1]
    order = np.argsort(middles, kind="stable")
    borders, distance = steps.borders.copy(), np.full(len(middles), np.inf)
    fences = np.concatenate([[curve.lo], borders, [curve.hi]])
    for height, place, rises in _passages(curve, middles[order]):
        k = order[height]
        away = abs(place - steps.borders[k])
        if rises == upward[k] and fences[k] < place < fences[k + 2] and away < distance[k]:
            borders[k], distance[k] = place, away
    if np.any(np.diff(borders) <= 0):
        borders = steps.borders  # two borders met: they stay, and the next round's levels tell them apart
    return Steps(borders, steps.codes, levels)


def _passages(curve: Curve, heights: Array) -> list[tuple[int, float, bool]]:
    """Every (index of height, x, whether upward) at which f' passes one of the increasing `heights`."""
    passages = []
    for run, (crossed, positions) in zip(curve.runs, curve.crossings(heights), strict=True):
        passages += [(int(i), float(at), run.last > run.first) for i, at in zip(crossed, positions, strict=True)]
    for left, right in pairwise(curve.runs):
        low, high = sorted((left.last, right.first))
        jumped = np.flatnonzero((low <= heights) & (heights <= high) & (low < high))
        passages += [(int(i), left.hi, right.first > left.last) for i in jumped]
    return passages
