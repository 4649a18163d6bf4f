"""A lower bound on the error of every joint code with K levels, from the optimum on a grid of cells.

Let F(x) = (f'(x), sqrt(λ) f(x)), and let q be constant, q = y_1, ..., y_K, on K successive intervals; its error is
∫ |F - q|² w. On a cell let F have mass μ and sum of squared distances from its mean σ.

Lemma 1 (one border inside the cell). Let q be u on the left part A of the cell and v on the rest B. One of u and v, on
the whole cell, costs at most |u - v| sqrt(μσ) more.
Proof. With Δ = |u - v|, g the component of F along v - u and c that of (u + v)/2, |F - u|² - |F - v|² = 2Δ (g - c).
Taking v on A costs at most 2Δ ∫(g - c)⁻ more, taking u on B at most 2Δ ∫(g - c)⁺. The first grows with c, the second
falls, and where they meet, at the mean of g, each is half of ∫|g - mean|; so the lesser is at most Δ ∫|g - mean|
<= Δ sqrt(μ ∫(g - mean)²) <= Δ sqrt(μσ), by Cauchy and Schwarz.

Lemma 2 (more borders inside). Then some of the intervals lie inside the cell. Let one of them, with F's mean on the
cell for its level, take the whole cell, and drop the others: that costs at most σ more, and adds no interval.

Lemma 3. The levels of a best q are the means of F on its intervals, and Σ|y_{k+1} - y_k| is at most the length of F.
Proof. On interval k let x_k(t) be the t-quantile of w there. Then y_k = ∫ F(x_k(t)) dt over 0 < t < 1, and
Σ|y_{k+1} - y_k| <= ∫ Σ|F(x_{k+1}(t)) - F(x_k(t))| dt, where for each t the points follow each other along the curve.

Hence some q that is constant on cells costs at most

    Σ|y_{k+1} - y_k| max sqrt(μσ) + (K - 1)/2 max σ

more than the best: a cell with more than one border uses up two of K - 1. The optimum of the dynamic programme costs
no more than that q. The length of F, which is monotone in both components on each cell, is at most the sum of their
changes, and Σ|y_{k+1} - y_k| is also at most K - 1 times the greatest distance of two points. The bound subtracts
the rounding slack of the programme too, and 16 times the difference of two Gauss rules, which is an estimate; all else
is proven. `exact` has moments that are proven, too, for the weights that it knows.
"""

import math

import numpy as np

from actfit.fitting.fewbit.curve import ROUNDING
from actfit.fitting.joint.plane import Cells, Plane


def lower_bound(plane: Plane, cells: Cells, k: int, grid_cost: float, slack: float) -> tuple[float, float]:
    """The bound, at least 0, and the part of its loss that is due to the cells' size.

    `grid_cost` ± `slack` is the optimal cost between cells with k levels.
    """
    weighted = cells.moments.mass > 0
    sizes = float(cells.spare[weighted].max()), float(cells.spread[weighted].max())
    gain = gain_inside(k, _length(plane, cells), 2 * plane.reach, *sizes)
    inside = math.fsum(cells.moments.spread[weighted])
    return max(0.0, inside + grid_cost - slack - gain - plane.doubt), gain


def gain_inside(k: int, length: float, diameter: float, spare: float, spread: float) -> float:
    """What borders inside cells can gain: by the curve's length and diameter, and the largest sqrt(μσ) and σ."""
    return min(length, (k - 1) * diameter) * spare + (k - 1) / 2 * spread


def _length(plane: Plane, cells: Cells) -> float:
    """At least the length of the curve, with its leaps from each run to the next."""
    return (math.fsum(cells.change.ravel()) + math.fsum(np.abs(plane.leaps).ravel())) * (1 + ROUNDING)
