"""A second look at a density, by points of its own: a rule of 12 points cannot know of a peak between them.

The nodes of `moments` claim that on each cell w is the polynomial through its values at them. Here w is looked at
on `POINTS` evenly spaced points as well, and cells on which it is not what their nodes claim are halved until it
is. A peak that no point falls on stays unseen: nothing that calls w can exclude it.
"""

from collections.abc import Callable

import numpy as np
from scipy import special

from fitting.activations.tape import Array

POINTS = 1 << 18  # over the domain, shared out evenly among the stretches between landmarks
FEWEST = 1 << 10  # in each of them
UNSEEN = 1e-10  # of all mass: what one cell may hold that its nodes do not claim
MOST_EDGES = 100_000

_ROOTS, _WEIGHTS = special.roots_legendre(12)
_BARYCENTRIC = (-1.0) ** np.arange(12) * np.sqrt((1 - _ROOTS**2) * _WEIGHTS)


def refined(density: Callable[[Array], Array], landmarks: Array, edges: Array, offset: float) -> tuple[Array, float]:
    """`edges` and more between them, such that points see what the cells' nodes claim, to `UNSEEN` of the mass each.

    Parameters
    ----------
    density : callable
        The density.
    landmarks : float64 array
        Increasing, the domain's ends among them.
    edges : float64 array
        Of the cells.
    offset : float
        In (0, 1), where the points lie in their strata.

    Returns
    -------
    edges, mass
        The mass that is still not claimed is more than rounding for a density of many peaks, or noise.
    """
    count = max(FEWEST, POINTS // (len(landmarks) - 1))
    lengths = np.diff(landmarks) / count
    points = (landmarks[:-1, None] + lengths[:, None] * (np.arange(count) + offset)).ravel()
    masses = np.repeat(lengths, count)
    values = density(points)
    limit = UNSEEN * float(values @ masses)
    lo, hi, found, rest = edges[:-1], edges[1:], edges, 0.0
    while lo.size:
        unclaimed = _unclaimed(density, points, values, masses, lo, hi)
        mid = lo + (hi - lo) / 2
        split = (unclaimed > limit) & (lo < mid) & (mid < hi)
        if len(found) + split.sum() > MOST_EDGES:
            split[:] = False
        rest += float(unclaimed[~split].sum())
        lo, mid, hi = lo[split], mid[split], hi[split]
        found = np.concatenate([found, mid])
        lo, hi = np.concatenate([lo, mid]), np.concatenate([mid, hi])
    return np.sort(found), rest


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
