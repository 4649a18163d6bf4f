"""A proven bound of max |q(y) - g(y)| over one branch: by branch and bound on x, in ball arithmetic.

It proves |q(f(x)) - f'(x)| <= `upper` for every real x inside an arc of the branch with |x| <= 2**128, which includes
all finite inputs of bfloat16, float16 and float32; q is computed in exact real arithmetic with its stored constants,
and y is not rounded. The proof relies on python-flint; on the ends of the arcs (float64 numbers: a kink is at this very
number, and f' at the kink itself is not part of the proof); and on y staying within the range that the arc states,
where a root of q must be real or a condition in q be decided. It assumes nothing else about f, neither that f is
monotone nor its limits, but for double exponentials far out (`Difference`).
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from actfit.fitting.activations.tape import Array
from actfit.fitting.invact.branches import Arc, Branch
from actfit.fitting.invact.formula import Candidate
from actfit.fitting.invact.proof.difference import Difference

REACH = 2.0**128  # |x| of every float32 number
SHARP = 0.002  # of the largest sample: by how much the bound may exceed it
RESOLVED = 1e-15  # errors below it are not distinguished
MOST = 20_000  # cells; a bound that would need more stays as it is, and has a large slack
SCAN = 500  # points of an arc at which the error is first computed in float64
STARTS = 3  # of these points, those with the largest errors, at which it is then sampled


@dataclass(frozen=True)
class Bound:
    """A proven bound of |q - g| on one branch; of |q - g| / max(1, |g|) on an arc where g has no bound."""

    upper: float  # |q - g| <= upper on the whole branch; rounded up, infinite if nothing could be proven
    sampled: float  # the largest |q - g| at the points that were tried
    at: float  # the x of that point

    @property
    def slack(self) -> float:
        """By how much the bound may be too large, as a part of the sample; 0 if there is no error to resolve."""
        if self.upper <= RESOLVED:
            return 0.0
        return self.upper / self.sampled - 1.0 if self.sampled else math.inf


def prove(candidate: Candidate, branch: Branch) -> Bound:
    """A bound of |q - g| on a branch, within 0.2 % of a sample unless its `slack` says otherwise.

    Its `upper` is infinite if q has a pole, or is not known to be a real number, somewhere on the branch.
    """
    return _Search([Difference(candidate, arc) for arc in branch.arcs]).run()


class _Search:
    """Cells of x, the one of the largest bound split first, until no bound is worth splitting."""

    def __init__(self, differences: list[Difference]) -> None:
        self.differences = differences
        self.sampled, self.at = 0.0, math.nan
        self.settled = 0.0  # the largest bound of cells that are not split any more
        self.cells: list[tuple[float, float, float, float, int]] = []  # -bound, width, lo, hi, number of the arc

    def run(self) -> Bound:
        for index, difference in enumerate(self.differences):
            points = _scan(difference.arc)
            error = np.nan_to_num(difference.scan(points), nan=0.0, posinf=0.0)
            for i in np.argsort(-error, kind="stable")[:STARTS]:
                self._sample(index, float(points[i]))
        for index, difference in enumerate(self.differences):
            for lo, hi in _first_cells(difference.arc):
                self._add(lo, hi, index)
        for _ in range(MOST):
            if not self.cells or -self.cells[0][0] <= self._enough:
                break
            upper, _, lo, hi, index = heapq.heappop(self.cells)
            middle = lo + (hi - lo) / 2
            if lo < middle < hi:
                self._add(lo, middle, index)
                self._add(middle, hi, index)
            else:
                self.settled = max(self.settled, -upper)
            if math.isinf(self.settled):
                break
        left = -self.cells[0][0] if self.cells else 0.0
        return Bound(max(self.settled, self.sampled, left), self.sampled, self.at)

    @property
    def _enough(self) -> float:
        """The bound at which a cell is not split any more."""
        return max(self.settled, self.sampled * (1 + SHARP), RESOLVED)

    def _sample(self, index: int, x: float) -> None:
        error = self.differences[index].at(x)
        if error.is_finite() and float(error) > self.sampled:
            self.sampled, self.at = float(error), x

    def _add(self, lo: float, hi: float, index: int) -> None:
        enclosure = self.differences[index].over(lo, hi, self._enough)
        if enclosure.about > self.sampled:
            self._sample(index, enclosure.at)
        if enclosure.upper <= self._enough:
            self.settled = max(self.settled, enclosure.upper)
        else:  # of equal bounds the narrowest cell comes first: where all are infinite, until one is finite
            heapq.heappush(self.cells, (-enclosure.upper, hi - lo, lo, hi, index))


def _first_cells(arc: Arc) -> Iterator[tuple[float, float]]:
    """The part of the arc within reach, in cells that double their width towards its infinite ends."""
    lo, hi = max(arc.lo, -REACH), min(arc.hi, REACH)
    if math.isfinite(arc.lo) and math.isfinite(arc.hi):
        yield lo, hi
        return
    base = arc.lo if math.isfinite(arc.lo) else arc.hi if math.isfinite(arc.hi) else 0.0
    away = [0.0, *(2.0**k for k in range(int(math.log2(REACH)) + 1))]
    for near, far in pairwise(away):
        if math.isinf(arc.hi) and base + near < min(base + far, hi):
            yield base + near, min(base + far, hi)
        if math.isinf(arc.lo) and max(base - far, lo) < base - near:
            yield max(base - far, lo), base - near


def _scan(arc: Arc) -> Array:
    """Points of the arc, denser towards its finite ends."""
    inner = np.concatenate([np.geomspace(1e-8, 1.0, SCAN // 4), np.linspace(1.0, 40.0, SCAN), np.geomspace(40, 1e9, 9)])
    ends = [(end, sign) for end, sign in ((arc.lo, 1.0), (arc.hi, -1.0)) if math.isfinite(end)]
    points = np.concatenate([end + sign * inner for end, sign in ends or [(0.0, 1.0), (0.0, -1.0)]])
    return np.unique(points[(points > arc.lo) & (points < arc.hi)])
