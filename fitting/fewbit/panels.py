"""f', or another function, as Chebyshev polynomials on short panels, with proven errors: a few thousand balls in place
of millions.

On a panel, of midpoint c and half-length r, g(c + r·t) is interpolated in t at the N points cos((j + 1/2)π/N). Where
g is analytic and at most M in size inside the ellipse with the foci ±1 and semi-axes (ρ ± 1/ρ)/2, the interpolant is
within 4 M ρ^(1-N) / (ρ - 1) of it (Trefethen, Approximation Theory and Approximation Practice, theorem 8.2; its proof,
by aliasing, serves these points too). M comes from one complex ball around the ellipse; panels are halved until that
error is rounding. Coefficients are computed in balls.

Rounding of the evaluation, with u = eps / 2 and coefficients c_k. The recurrence of T_k errs by at most 4k²u on
[-1, 1], as each step adds 4u, which later steps multiply by at most k. An error of 8u in t adds 8k²u, as |T_k'| <= k².
Sums and products of less than 64 terms add 64u. Together Σ |c_k| (12k² + 64) u; the constants below leave room for
errors of second order.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import flint
import numpy as np
from numpy.typing import NDArray

from actfit.fitting.activations.balls import above
from actfit.fitting.activations.tape import Array, Tape
from actfit.fitting.fewbit.chunks import chunks
from actfit.fitting.fewbit.curve import Run

POINTS = 20  # N
NODES = 10  # of Gauss's rule, which is exact for degrees below 20
RHO = 8
PRECISION = 96  # bits
EPS = float(np.finfo(np.float64).eps)
ENOUGH = 2 * EPS  # an error of interpolation that is no more than rounding, relative to the range of f'
Function = Callable[[Any], Any]  # of a ball, real (`arb`) or complex (`acb`)
MOST = 4096  # panels of a run: at the end of a square root there is no ellipse, and halving would not end


class Parts(NamedTuple):
    """Cells cut at the ends of panels: the ends of each part, its panel and its cell; and the lengths of the cells."""

    left: Array
    right: Array
    panel: NDArray[np.int64]
    cell: NDArray[np.int64]
    lengths: Array


@dataclass(frozen=True)
class Panels:
    """Polynomials that stand for a function g on an interval."""

    edges: Array  # float64 (m + 1,): increasing; a panel lies between two neighbours
    # centre, half: float64 (m,): of the panels; `half` is rounded up
    centre: Array
    half: Array
    coefficients: Array  # float64 (m, N): of T_0 ... T_(N-1).
    radius: Array  # float64 (m,): bounds of the errors of `at` and `means`

    def at(self, points: Array, panels: NDArray[np.int64]) -> Array:
        """g at each of `points`, which lie in these panels, to their `radius`."""
        return _sum(self._terms(panels), (points - self.centre[panels]) / self.half[panels])

    def means(self, lo: Array, hi: Array, panels: NDArray[np.int64]) -> Array:
        """The mean of g over each [lo, hi], which lies in one panel, to its `radius`."""
        total = np.zeros_like(lo)
        for part in chunks(len(lo)):
            at, terms = panels[part], self._terms(panels[part])
            first, last = ((end[part] - self.centre[at]) / self.half[at] for end in (lo, hi))
            for node, weight in zip(*gauss(), strict=True):
                total[part] += weight * _sum(terms, first + (last - first) * node)
        return total

    def _terms(self, panels: NDArray[np.int64]) -> Array:
        """The coefficients of these panels, a row for each degree."""
        terms: Array = self.coefficients.T[:, panels]
        return terms

    def parts(self, lo: Array, hi: Array) -> Parts:
        """Cells [lo, hi] that follow each other over the whole interval, cut at the ends of panels."""
        points = np.unique(np.concatenate([self.edges, lo, hi]))
        left, right = points[:-1], points[1:]
        panels, owner = np.searchsorted(self.edges, right, side="left") - 1, np.searchsorted(hi, right, side="left")
        return Parts(left, right, panels, owner, hi - lo)

    def averages(self, parts: Parts, reach: float) -> tuple[Array, Array]:
        """The mean of g over each of the cells of these parts, and a bound of its error; `reach` bounds |g|."""
        left, right, panels, owner, lengths = parts
        share = (right - left) / lengths[owner]
        mean = np.bincount(owner, share * self.means(left, right, panels)).astype(np.float64)
        radii = self.radius[panels] + 16 * EPS * reach
        return mean, np.bincount(owner, share * radii).astype(np.float64)


def _sum(terms: Array, t: Array) -> Array:
    """The sum of terms[k] * T_k(t)."""
    before, now = np.ones_like(t), t
    total: Array = terms[0] + terms[1] * t
    for row in terms[2:]:
        before, now = now, 2 * t * now - before
        total += row * now
    return total


def on_balls(tape: Tape) -> Function:
    """A tape as a function of balls of both kinds."""
    return lambda ball: tape.acb(ball) if isinstance(ball, flint.acb) else tape.arb(ball)


def panels_of(run: Run, level: float, reach: float) -> Panels | None:
    """The `panels` of f' - level on a run."""
    derivative = on_balls(run.piece.d1)
    return panels(lambda ball: derivative(ball) - level, run.lo, run.hi, reach)


def panels(function: Function, start: float, end: float, reach: float) -> Panels | None:
    """The panels of a function; None where it cannot be shown to be analytic, as at the end of a square root.

    Errors are compared with the rounding of a number of size `reach`.
    """
    todo, finished = [(start, end)], []
    while todo:
        lo, hi = todo.pop()
        panel = _panel(function, lo, hi)
        if panel is not None and panel[-1] <= ENOUGH * reach:
            finished.append((lo, *panel))
            continue
        middle = lo + (hi - lo) / 2
        if not lo < middle < hi or len(todo) + len(finished) > MOST or hi - lo < EPS * (end - start):
            return None
        todo += [(middle, hi), (lo, middle)]
    starts, centre, half, coefficients, error = (np.array(column) for column in zip(*finished, strict=True))
    sizes = np.abs(coefficients) @ (16.0 * np.arange(POINTS) ** 2 + 128)
    return Panels(np.append(starts, end), centre, half, coefficients, error + sizes * EPS / 2)


def _panel(function: Function, lo: float, hi: float) -> tuple[float, float, list[float], float] | None:
    """Centre, half-length, coefficients and error of one panel; None where there is no bound."""
    centre = lo + (hi - lo) / 2
    half = max(centre - lo, hi - centre) * (1 + 4 * EPS)
    with flint.ctx.workprec(PRECISION):
        long, short = (half * (RHO + sign / RHO) / 2 * (1 + 4 * EPS) for sign in (1, -1))
        around = flint.acb(flint.arb(centre, long), flint.arb(0, short))
        most = abs(function(around)).upper()
        error = above(4 * most * flint.arb(RHO) ** (1 - POINTS) / (RHO - 1))
        if not math.isfinite(error):
            return None
        cosines, transform = _chebyshev()
        values = flint.arb_mat([[function(centre + half * cosine)] for cosine in cosines])
        balls = (transform * values).entries()
        coefficients = [float(ball.mid()) for ball in balls]
        error += sum(above(abs(ball - float(ball.mid()))) for ball in balls)
    return (centre, half, coefficients, error) if math.isfinite(error) else None


@cache
def _chebyshev() -> tuple[list[Any], Any]:
    """The points, and the matrix from values there to coefficients."""
    with flint.ctx.workprec(PRECISION):
        angles = [(2 * j + 1) * flint.arb.pi() / (2 * POINTS) for j in range(POINTS)]
        rows = [[(1 if k == 0 else 2) * (k * angle).cos() / POINTS for angle in angles] for k in range(POINTS)]
        return [angle.cos() for angle in angles], flint.arb_mat(rows)


@cache
def gauss() -> tuple[list[float], list[float]]:
    """Nodes and weights of Gauss's rule on [0, 1], each within an eps."""
    with flint.ctx.workprec(PRECISION):
        pairs = [flint.arb.legendre_p_root(NODES, k, weight=True) for k in range(NODES)]
        return [float((1 + root) / 2) for root, _ in pairs], [float(weight / 2) for _, weight in pairs]
