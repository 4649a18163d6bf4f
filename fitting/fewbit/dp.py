"""The best piecewise-constant approximation of weighted values in a fixed order, found exactly.

    T(j, i) = sum over atoms j .. i-1 of mass * |value - mean of the segment|^2

is the cost of one segment; `partition` finds the cuts with the least total. Values in sorted order make it
one-dimensional k-means; values in the order of x make it a step function of x. A value is a number or a pair,
whose two components share the cuts. The search is in `blocks`.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from actfit.coefficients.compiled import compiled
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.blocks import TABLE_CELLS, Floats, Ints, best_cuts

EPS = float(np.finfo(np.float64).eps)
TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, eq=False)
class Partition:
    """Segments between neighbours of 0, *cuts, n."""

    cuts: Ints  # int64 (segments - 1,): increasing, each the index of the first atom with mass of its segment
    cost: float  # their total cost, from each segment's own mean
    slack: float  # the least cost possible, in exact arithmetic, lies within cost - slack .. cost + slack.


def partition(values: ArrayLike, masses: ArrayLike, k: int) -> Partition:
    """Cut the atoms, in their order, into at most k segments with the least total cost.

    Equal neighbours are never separated, as that cannot reduce the cost. Where k segments separate all others the cost
    is exactly 0. Equal inputs give equal cuts on every machine; of equally good cuts the left ones, up to rounding.

    Time: O(k n log n) for sorted values, little more for few turning points (of any component), O(k n^2) for the
    worst noise. Memory: O(n).

    values, (n,) or (n, 2): finite.
    masses, (n,): finite and at least 0; atoms without mass change nothing.
    Raises `InputError` for bad arguments, `OverflowError` for a cost beyond float64.
    """
    if k < 1:
        raise InputError(f"k must be 1 or more, got {k}; 1 is a single constant")
    atoms = prepared(values, masses)
    if atoms.starts.size <= k:
        return Partition(atoms.places[atoms.starts[1:]], 0.0, 0.0)
    tolerance = 4 * EPS * math.sqrt(atoms.sums[-1, 2] / atoms.sums[-1, 0] / atoms.p.shape[1])
    values = atoms.p[atoms.starts].T.copy()
    turns = np.unique(np.concatenate([turning_points(component, tolerance) for component in values]))
    cuts = best_cuts(atoms.sums, turns, k, 12 * atoms.noise)
    cost, slack = atoms.cost(cuts), rounding_slack(atoms, k)
    return Partition(
        atoms.places[atoms.starts[cuts]],
        math.ldexp(cost, atoms.exponent),
        math.ldexp(slack, atoms.exponent) + math.ulp(0.0),
    )


@dataclass(frozen=True, eq=False)
class Atoms:
    """The atoms with mass, centred and scaled by powers of two, ready for a search."""

    places: Ints  # int64 (m,): their indices in the input
    # p, u: float64 (m, d) and (m,): values and masses, below 1 in size; empty without mass, as are the next two
    p: Floats
    u: Floats
    starts: Ints  # int64 (r,): the first atom of each run of equal values; cuts are made there only
    sums: Floats  # float64 (r + 1, 3 + 2 d): as from `prefix_sums`
    exponent: int  # costs are 2**exponent times what p and u give
    noise: float  # the unit of the bounds on rounding, see `rounding_slack`

    def cost(self, cuts: Ints) -> float:
        """The cost of the segments between `cuts`, which are indices of runs of equal values."""
        cuts = self.starts[cuts]
        return math.fsum(map(_cost, np.split(self.p, cuts), np.split(self.u, cuts)))


def prepared(values: ArrayLike, masses: ArrayLike) -> Atoms:
    """The atoms of `values` and `masses`; arguments and errors are those of `partition`."""
    p, u = _checked(values, masses)
    places = np.flatnonzero(u)
    p, u = np.ascontiguousarray(p[places]), u[places]
    starts = np.flatnonzero(np.concatenate(([True], np.any(p[1:] != p[:-1], axis=1)))[: u.size])
    if starts.size < 2:
        return Atoms(places, p, u, starts, np.zeros((starts.size + 1, 3 + 2 * p.shape[1])), 0, 0.0)
    # Powers of two keep the squares in range; centring makes them, and so the rounding errors, small.
    p, p_exponent = _scaled(p)
    u, u_exponent = _scaled(u)
    p = p - _mean(p, u)
    sums = prefix_sums(p, u, starts)
    noise = EPS * (sums[-1, 2] + u.size * EPS * sums[-1, 0] * float(np.sum(p**2, axis=1).max()))
    return Atoms(places, p, u, starts, sums, 2 * p_exponent + u_exponent, noise)


def _checked(values: ArrayLike, masses: ArrayLike) -> tuple[Floats, Floats]:
    p, u = np.asarray(values, np.float64), np.asarray(masses, np.float64)
    if p.size == 0 or p.shape[1:] not in ((), (1,), (2,)):
        raise InputError(f"values must be one row of at least one number or pair, got shape {p.shape}; see ravel")
    if u.shape != p.shape[:1]:
        raise InputError(f"masses must have shape {p.shape[:1]}, one for each value, got {u.shape}")
    p = p.reshape(u.size, -1)
    if not np.isfinite(p).all():
        at, component = map(int, np.argwhere(~np.isfinite(p))[0])
        raise InputError(f"values must be finite, got {p[at, component]} at {at}; leave such atoms out")
    if not (np.isfinite(u) & (u >= 0)).all():
        at = int(np.flatnonzero(~(np.isfinite(u) & (u >= 0)))[0])
        raise InputError(f"masses must be finite and 0 or more, got {u[at]} at {at}; 0 leaves an atom out")
    return p, u


def _scaled(x: Floats) -> tuple[Floats, int]:
    """x / 2^exponent with its greatest size in [1/2, 1), and the exponent."""
    exponent = math.frexp(float(np.abs(x).max()))[1]
    return np.ldexp(x, -exponent), exponent


def _mean(p: Floats, u: Floats) -> Floats:
    mass = math.fsum(u.tolist())
    return np.array([math.fsum((u * column).tolist()) / mass for column in p.T])


def _cost(p: Floats, u: Floats) -> float:
    """Cost of one segment, from its own mean: where its mass is tiny, the prefix sums are too coarse."""
    if not u.any():  # lost in scaling, below 2^-1074 of the greatest
        return 0.0
    return math.fsum((u[:, np.newaxis] * (p - _mean(p, u)) ** 2).ravel().tolist())


def rounding_slack(atoms: Atoms, k: int) -> float:
    """A bound on the loss of the search by rounding: the terms are those of `blocks`, in units of `noise`.

    Let Q be the sum of mass * value^2, and count eps / 2 for each rounding. In first^2 / mass there are 3 for
    the products, the high parts and the whole of `first`, doubled by the square (its terms may cancel, but
    their sizes over mass give no more than Q, by Cauchy and Schwarz), 2 for mass, 2 for square and quotient;
    2 for the products of mass * value^2 and 2 for its prefix sums; 2 for centring; 4 for the sums of these.
    So tau = 12 holds the 20 with room, also for the addition and the difference that a second component brings. The
    second term of `noise` is for prefix sums with low parts, right to n eps^2 of the whole, which counts where a tiny
    mass has a huge value.
    A tolerance t of turning points (t / sqrt(d) in each of d components) moves sqrt(T) by t sqrt(mass) at most:
    t = 4 eps sqrt(Q / mass), nu = 9.
    With margin = 12, lambda = 96, and a layer's loss is 96 (levels + 1) + 12 < 100 (levels + 1).
    Each of Hirschberg's halvings repeats the whole search, with k layers in all.
    """
    n = atoms.starts.size
    passes = 1 if k * (n + 1) <= TABLE_CELLS else k.bit_length()
    return 100 * atoms.noise * (n.bit_length() + 1) * k * passes + atoms.p.size * TINY


@compiled
def prefix_sums(p: Floats, u: Floats, starts: Ints) -> Floats:
    """The `sums` of `blocks.best_cuts`, before each start and over all atoms: (len(starts) + 1, 3 + 2 d)."""
    n, d = p.shape
    sums = np.empty((starts.size + 1, 3 + 2 * d))
    terms, high, low = np.zeros(d + 2), np.zeros(d + 2), np.zeros(d + 2)  # of mass, mass * |value|^2, mass * value
    row = 0
    for i in range(n + 1):
        if i == n or (row < starts.size and i == starts[row]):
            sums[row, 0], sums[row, 1], sums[row, 2] = high[0], low[0], high[1]
            sums[row, 3::2], sums[row, 4::2] = high[2:], low[2:]
            row += 1
        if i == n:
            break
        terms[0], terms[1] = u[i], 0.0
        for c in range(d):
            terms[2 + c] = u[i] * p[i, c]
            terms[1] += terms[2 + c] * p[i, c]
        for t in range(d + 2):
            total = high[t] + terms[t]
            part = total - high[t]  # Knuth's two-sum: `low` gets what the addition lost, exactly
            low[t] += (high[t] - (total - part)) + (terms[t] - part)
            high[t] = total + low[t]
            low[t] -= high[t] - total
    return sums


@compiled
def turning_points(p: Floats, tolerance: float) -> Ints:
    """0, the atoms where p turns, len(p) - 1; between two of these p goes back by no more than tolerance.

    Without the tolerance, the last bits of a flat tail would count as hundreds of turns. Time: O(n).
    """
    turns = [0]
    direction = 0  # until the values have left the tolerance once
    lowest = highest = 0
    for i in range(p.size):
        if direction >= 0 and p[i] >= p[highest]:
            highest = i
        if direction <= 0 and p[i] <= p[lowest]:
            lowest = i
        if direction >= 0 and p[highest] - p[i] > tolerance:
            if direction > 0:
                turns.append(highest)
            direction, lowest = -1, i
        elif direction <= 0 and p[i] - p[lowest] > tolerance:
            if direction < 0:
                turns.append(lowest)
            direction, highest = 1, i
    turns.append(p.size - 1)
    return np.array(turns)
