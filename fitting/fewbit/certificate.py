"""A lower bound on the error of every function with K levels, from the optimum on a grid of cells.

Lemma. On a cell, let f' have mass μ and sum of squared deviations σ from its mean, and let q take there the
nearest of some levels y_1 < ... < y_r. Using only one of them, the best, on the whole cell costs at most
Σ (y_{k+1} - y_k)·sqrt(μσ) more, summed over those middles (y_k + y_{k+1})/2 that lie in the range of f'.
Proof. Passing the middle m of two levels Δ apart changes (f' - y)² by 2Δ(f' - m). Walking up the levels,
stop at the first whose upper middle has ∫(f'-m)⁺ <= ∫(f'-m)⁻; then every middle costs 2Δ·min of the two.
The first falls with m, the second rises, and they meet at the mean, where each is half of ∫|f'-mean|,
which Cauchy and Schwarz bound by sqrt(μσ). A middle outside the range costs nothing.

Hence, for any q with K levels, replacing it by one that is constant on cells costs, added over cells,
  shared:      at most Σ_k Δ_k·s(m_k) <= (max f' - min f')·max_v s(v), where s(v) sums sqrt(μσ) over the
               cells whose range holds v (levels outside the range of f' never help);
  contiguous:  at most Σ_k |Δ_k|·max sqrt(μσ), for only the cells that hold a border change. The best levels
               are means over successive intervals, so Σ|Δ_k| is at most the variation of f', and at most
               (K-1)(max f' - min f').
A function of |x| is one of x >= 0 under the folded weight, and its bound is that of the contiguous kind
there. The cheapest function that is constant on cells is what the dynamic programme finds; it and the
spread inside the cells make up the optimum on the grid, and the bound is that optimum less the cost above.
The bound also subtracts the floating point slack of the programme, and a bound on the moments' errors. Under a constant
weight this is proven, as everything else is (`exact`). Under other weights it is 16 times the difference of two Gauss
rules (also in σ), and the rounding of f': then ranges are proven, but integrals are known only to that estimate.
"""

import math

import numpy as np
from numpy.typing import NDArray

from actfit.fitting.activations.tape import Array
from actfit.fitting.fewbit.curve import ROUNDING
from actfit.fitting.fewbit.measure import Cells, Measure


def lower_bound(
    measure: Measure, cells: Cells, k: int, grid_cost: float, slack: float, shared: bool, inside: float | None = None
) -> tuple[float, float]:
    """The bound, at least 0, and the part of its loss that is due to the cells' size.

    `grid_cost` ± `slack` is the optimal cost between cells with k levels; `inside` is a lower bound of the spread
    inside the cells, by default that of their moments less their doubts.
    """
    weighted = cells.moments.mass > 0
    low, high = cells.low[weighted], cells.high[weighted]
    span = float(high.max() - low.min())
    if shared:
        gain = span * _peak(low, high, cells.spare[weighted])
    else:
        gain = min(_variation(cells, weighted, measure.curve.edges), (k - 1) * span) * float(cells.spare.max())
    if inside is None:
        inside = math.fsum(cells.moments.spread) - measure.doubt
    rounding = ROUNDING * (abs(inside) + grid_cost + slack + gain)  # of the next line, and of the gain
    return max(0.0, inside + grid_cost - slack - gain - rounding), gain


def _peak(low: Array, high: Array, spare: Array) -> float:
    """max over v of the sum of `spare` over the ranges [low, high] that hold v."""
    wide = spare > 0
    order = np.lexsort((np.repeat([0, 1], wide.sum()), np.concatenate([low[wide], high[wide]])))
    changes = np.concatenate([spare[wide], -spare[wide]])[order]
    return float(np.max(np.cumsum(changes), initial=0.0)) * (1 + len(changes) * ROUNDING)


def _variation(cells: Cells, weighted: NDArray[np.bool_], edges: Array) -> float:
    """An upper bound of the total variation of f' over the cells with mass: within each, and from each to the next."""
    lo, hi, centre, width = cells.lo[weighted], cells.hi[weighted], cells.centre[weighted], cells.width[weighted]
    # Where two cells meet inside a run f' is continuous, and changes by no more than a gap between its ranges (over
    # samples); elsewhere it may leap from any value in one range to any value in the other.
    met = (hi[:-1] == lo[1:]) & ~np.isin(hi[:-1], edges)
    reach = (width[1:] + width[:-1]) / 2
    leaps = np.maximum(np.abs(np.diff(centre)) + np.where(met, -reach, reach), 0.0)
    return float(np.sum(width) + np.sum(leaps)) * (1 + ROUNDING)
