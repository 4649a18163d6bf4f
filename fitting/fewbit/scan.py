"""A scan of a density at further points: a rule of 12 points does not see a peak between them.

The nodes of `moments` claim that on each cell w is the polynomial through its values at them. Here w is evaluated
at `POINTS` evenly spaced points too, and cells on which it differs from that polynomial are halved until it does
not. A peak that no point falls on stays unseen: no method that only calls w can exclude it.
"""

from collections.abc import Callable

import numpy as np
from scipy import special

from actfit.fitting.activations.tape import Array

POINTS = 1 << 18  # over the domain, shared out evenly among the stretches between landmarks
FEWEST = 1 << 10  # in each of them
UNSEEN = 1e-10  # of all mass: how much of it a cell may have beside what its nodes claim
MOST_EDGES = 100_000

_ROOTS, _WEIGHTS = special.roots_legendre(12)
_BARYCENTRIC = (-1.0) ** np.arange(12) * np.sqrt((1 - _ROOTS**2) * _WEIGHTS)


def refined(density: Callable[[Array], Array], landmarks: Array, edges: Array, offset: float) -> tuple[Array, float]:
    """`edges` and more between them, so that points and nodes agree on each cell, to `UNSEEN` of the mass.

    landmarks: increasing, the domain's ends among them.
    edges: of the cells.
    offset: in (0, 1): where in its stratum each point lies.
    Returns the edges, and the mass not claimed by nodes: more than rounding for a density of many
    peaks, or noise.
    """
    count = max(FEWEST, POINTS // (len(landmarks) - 1))
    lengths = np.diff(landmarks) / count
    points = (landmarks[:-1, None] + lengths[:, None] * (np.arange(count) + offset)).ravel()
    masses = np.repeat(lengths, count)
    values = density(points)
    limit = UNSEEN * float(values @ masses)
    lo, hi, cell_edges, rest = edges[:-1], edges[1:], edges, 0.0
    while lo.size:
        unclaimed = _unclaimed(density, points, values, masses, lo, hi)
        mid = lo + (hi - lo) / 2
        split = (unclaimed > limit) & (lo < mid) & (mid < hi)
        if len(cell_edges) + split.sum() > MOST_EDGES:
            split[:] = False
        rest += float(unclaimed[~split].sum())
        lo, mid, hi = lo[split], mid[split], hi[split]
        cell_edges = np.concatenate([cell_edges, mid])
        lo, hi = np.concatenate([lo, mid]), np.concatenate([mid, hi])
    return np.sort(cell_edges), rest


def _unclaimed(
    density: Callable[[Array], Array], points: Array, values: Array, masses: Array, lo: Array, hi: Array
) -> Array:
    """For each cell, the sum over its points of |w - the polynomial through the cell's nodes| times their mass."""
    first, last = np.searchsorted(points, lo, side="right"), np.searchsorted(points, hi, side="left")
    count = np.maximum(last - first, 0)
    cell = np.repeat(np.arange(lo.size), count)
    index = np.arange(cell.size) - np.repeat(np.cumsum(count) - count, count) + first[cell]
    nodes = density(lo[:, None] + (hi - lo)[:, None] / 2 * (1 + _ROOTS))
    place = 2 * (points[index] - lo[cell]) / (hi - lo)[cell] - 1
    with np.errstate(all="ignore"):
        shares = _BARYCENTRIC / (place[:, None] - _ROOTS)
        claimed = (shares * nodes[cell]).sum(axis=1) / shares.sum(axis=1)
    away = np.nan_to_num(np.abs(values[index] - claimed), nan=0.0)  # NaN: a point that is a node
    return np.bincount(cell, away * masses[index], lo.size).astype(np.float64)
