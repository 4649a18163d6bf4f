"""The rival: the FewBit paper's dynamic programme (section 3, eqs. 7-9), as published.

Dense: an n×n matrix of segment costs, O(n²) memory and O(n²K) time. Deliberately not optimised.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def dense_dp(values: Floats, masses: Floats, k: int) -> tuple[list[int], float]:
    """Inner cuts and cost of the best partition of `values`, in their order, into k segments."""
    n = len(values)
    weight = np.concatenate([[0.0], np.cumsum(masses)])
    first = np.concatenate([[0.0], np.cumsum(masses * values)])
    second = np.concatenate([[0.0], np.cumsum(masses * values**2)])
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (first[None, :] - first[:, None]) / (weight[None, :] - weight[:, None])
        cost = second[None, :] - second[:, None] - mean**2 * (weight[None, :] - weight[:, None])
    cost[np.tril_indices(n + 1)] = np.inf
    best = cost[0].copy()
    starts_by_count = []
    for _ in range(k - 1):
        total = best[:, None] + cost
        starts = np.argmin(total, axis=0)
        best = total[starts, np.arange(n + 1)]
        starts_by_count.append(starts)
    cuts, end = [], n
    for starts in reversed(starts_by_count):
        end = int(starts[end])
        cuts.append(end)
    return cuts[::-1], float(best[n])
