"""The best partition with a price on segments, in one layer: far cheaper than `dp.partition` for many segments.

Add a price λ to each segment. One row of minima gives the best partition into any number of segments,

    D(i) = min over j < i of D(j) + T(j, i) + λ,     D(0) = 0,

in place of the k rows of `dp`. Every partition into k segments costs at least D(n) - λk, whatever λ is (weak
duality), and where the partition found has k segments, that is its cost: then it is the best, exactly. For sorted
values the least cost is convex in k (T is Monge), so some λ gives k, and the count of segments falls as λ rises:
λ is found by a search. For other orders there may be no such λ, and `dp.partition` must be called.

Rounding. Let every computed T, and the sums below, be within τ of the truth, and let `_scan` use a margin. D(i) grows
with i, and so does the computed one, by its running maximum. Claim: the computed D(i) is above the true one by at most
l·D(i)/λ, with l = margin + 2τ. Let j be the true best column of row i. Either the scan looked at it, or passed it over
as no better than what it had by more than margin + τ (fact 1 of `blocks`); its own rounding is the other τ. So row i
adds l to the excess of D(j), and D(i) >= D(j) + λ: by induction l·D(j)/λ + l <= l·D(i)/λ. A maximum with row i - 1
keeps the claim, as the true D grows. The excess of the last row is subtracted from the bound.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from actfit.coefficients.compiled import compiled
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.blocks import Columns, Floats, Ints, _cost, _scan
from actfit.fitting.fewbit.dp import EPS, TINY, Atoms, Partition, prepared, rounding_slack

TRIALS = 60  # of prices: five do for most curves
MARGIN = 12  # in units of noise, as in `dp`
THINNED = 32  # times fewer places to cut, for a first price
PLACES = 8  # a segment, that must be left for it


@compiled
def priced_cuts(sums: Floats, price: float, margin: float) -> tuple[float, Ints]:
    """D(n), and the cuts of the partition that has it.

    Time: O(n sqrt(n / segments)) on smooth curves. Memory: O(n).

    sums, float64 (n + 1, 5): as in `blocks.best_cuts`.
    price: λ, positive.
    margin: see the top.
    """
    n = len(sums) - 1
    least = np.zeros(n + 1)
    arg: Columns = np.zeros(n + 1, np.int32)
    for i in range(1, n + 1):
        seed = arg[i - 1]
        best, column = _scan(sums, least, i, 0, i - 1, least[seed] + _cost(sums, seed, i), seed, margin)
        least[i] = max(least[i - 1], best + price)
        arg[i] = column
    count, at = 0, arg[n]
    while at > 0:
        count, at = count + 1, arg[at]
    cuts = np.empty(count, np.int64)
    at = n
    for place in range(count - 1, -1, -1):
        at = arg[at]
        cuts[place] = at
    return least[n], cuts


def priced_partition(values: ArrayLike, masses: ArrayLike, k: int) -> Partition | None:
    """The best partition into k segments, or None if no price leads to it; its slack is at most that of `dp`.

    values, masses, k: as for `dp.partition`; the costs agree to the sum of both slacks.
    Raises `InputError` and `OverflowError` as `dp.partition` does.
    """
    if k < 1:
        raise InputError(f"k must be 1 or more, got {k}; 1 is a single constant")
    atoms = prepared(values, masses)
    if atoms.starts.size <= k:
        return Partition(atoms.places[atoms.starts[1:]], 0.0, 0.0)
    priced = _search(atoms, k)
    if priced is None:
        return None
    cuts, least, price = priced
    bound = _bound(atoms, least, price, k)
    cost = atoms.cost(cuts)
    slack = max(0.0, cost - bound) + atoms.p.size * TINY
    if slack > rounding_slack(atoms, k):  # no price leads to k segments, and others hide the least cost
        return None
    return Partition(
        atoms.places[atoms.starts[cuts]],
        math.ldexp(cost, atoms.exponent),
        math.ldexp(slack, atoms.exponent) + math.ulp(0.0),
    )


def _search(atoms: Atoms, k: int, every: int = 1) -> tuple[Ints, float, float] | None:
    """The cuts of k segments, D(n) and the price that leads to them; cuts are made before each `every`-th atom only.

    The first price is that of the search with `THINNED` times fewer places to cut, which takes as much less time and
    mostly ends at once what would take up to nine rounds. Where few places are left it comes from a smooth curve's
    error, C / k², as 2 C / k³. Once partitions with more and with fewer than k segments have been seen, the next price
    makes these two equally good. If no third partition is better at that price, both are best, and so is a splice of
    them.
    """
    sums = np.concatenate([atoms.sums[:-1:every], atoms.sums[-1:]])
    more: tuple[Ints, float] | None = None  # cuts and their cost
    fewer: tuple[Ints, float] | None = None
    rough = _search(atoms, k, every * THINNED) if len(sums) > PLACES * THINNED * k else None
    price = rough[-1] if rough else 2 * float(sums[-1, 2]) / k**3
    for _ in range(TRIALS):
        if not TINY < price < math.inf:
            return None
        least, cuts = priced_cuts(sums, price, MARGIN * atoms.noise)
        if len(cuts) == k - 1:
            return cuts * every, least, price
        if more is not None and fewer is not None and not len(fewer[0]) < len(cuts) < len(more[0]):
            spliced = _splice(fewer[0], more[0], k, len(sums) - 1)
            return None if spliced is None else (spliced * every, least, price)
        cost = least - price * (len(cuts) + 1)
        more, fewer = ((cuts, cost), fewer) if len(cuts) >= k else (more, (cuts, cost))
        if more is None or fewer is None:
            price *= ((len(cuts) + 1) / k) ** 3
        else:
            price = (fewer[1] - more[1]) / (len(more[0]) - len(fewer[0]))
    return None


def _bound(atoms: Atoms, least: float, price: float, k: int) -> float:
    """A lower bound on the cost of any partition into at most k segments, from a computed D(n)."""
    tau = MARGIN * atoms.noise + 2 * EPS * least  # of T and of the two sums, whose results are below D(n)
    loss = MARGIN * atoms.noise + 2 * tau
    return least * (1 - 4 * EPS) - price * k * (1 + 2 * EPS) - loss * (least / price + len(atoms.starts) * EPS)


def _splice(fewer: Ints, more: Ints, k: int, n: int) -> Ints | None:
    """The first segments of one partition and the last of the other, k in all; None where they never nest.

    Where a segment of `more` lies inside one of `fewer`, changing from one partition to the other there costs no more
    than both partitions do, if T is Monge.
    """
    outer, inner = [0, *fewer.tolist(), n], [0, *more.tolist(), n]
    skipped = len(inner) - k - 1
    for i in range(len(outer) - 1):
        j = i + skipped
        if j + 1 < len(inner) and outer[i] <= inner[j] and inner[j + 1] <= outer[i + 1]:
            return np.array([*outer[1 : i + 1], *inner[j + 1 : -1]], np.int64)
    return None
