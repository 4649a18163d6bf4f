"""The cells of a joint certificate without estimates, under a weight that has balls: all in ball arithmetic.

F = (f', sqrt(λ) f), c is a fixed point, and y a level. On a cell with μ = ∫ w and m = ∫ (F - c) w, a code costs

    ∫ |F - y|² w = ∫ |F - c|² w - 2 (y - c)·m + μ |y - c|².

- The first integral is computed over the whole domain, as a ball. μ and m come from the polynomials by which `panels`
  approximates w and (F - c) w. Errors of at most δμ and δm change the costs of a code by at most
  Σ (2 R δm + R² δμ), R being a bound of |y - c|; the levels of a best code are means of F, so they lie in the box
  that holds the curve. A cell's mean is c + m/μ, for which the best code that is constant on cells is found.
- Where |F'| <= L and w <= W on a cell of length h, its mass is at most W h, and its spread at most W L² h³ / 12: the
  integral of L² (x - middle)² W is at least that of |F - F(middle)|² w, and so at least the spread.
- The curve's length is at most Σ L h, and its leaps.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import flint
import numpy as np

from actfit.fitting.activations.balls import above, below
from actfit.fitting.activations.tape import Array
from actfit.fitting.fewbit.curve import Run, hull
from actfit.fitting.fewbit.judge import PRECISION
from actfit.fitting.fewbit.measure import MAX_CELLS, TINIEST
from actfit.fitting.fewbit.panels import EPS, Function, Panels, on_balls, panels
from actfit.fitting.joint.plane import Plane

ROOM = 1 + 64 * EPS  # for the rounding of products of a few factors
TOLERANCE = flint.arb(2) ** -100  # of the integral of |F - c|² w, relative to its largest value


@dataclass(frozen=True)
class Cells:
    """A partition of the domain, in x order; each cell inside one run of the curve."""

    # lo, hi: float64 (n,): their ends
    lo: Array
    hi: Array
    # steepest, highest: float64 (n,): bounds of |F'| and of w; inf or NaN where none is found
    steepest: Array
    highest: Array
    # low, high: float64 (n, 2): corners of a box that holds the curve there
    low: Array
    high: Array

    @property
    def spare(self) -> Array:
        """At least sqrt(μσ)."""
        result: Array = self.highest * self.steepest * (self.hi - self.lo) ** 2 / math.sqrt(12) * ROOM
        return result

    @property
    def spread(self) -> Array:
        """At least σ."""
        result: Array = self.highest * self.steepest**2 * (self.hi - self.lo) ** 3 / 12 * ROOM
        return result


@dataclass(frozen=True)
class ProvenCells:
    """What a bound needs of all cells."""

    mass: Array  # float64 (n,): masses; 0 where one is not told from 0
    mean: Array  # float64 (n, 2): mean points
    # spare, spread: upper bounds of sqrt(μσ) and of σ
    spare: float
    spread: float
    # length, diameter: upper bounds of the curve's length and of the distance of two points of it
    length: float
    diameter: float
    inside: float  # a lower bound of the sum of σ, less what the errors of masses and means can do


class ExactPlane:
    """The curve of `plane` in balls.

    Parameters
    ----------
    plane : Plane
        Under a weight with a `height`, or a `normal` one. Raises TypeError for others.
    output_weight : float
        λ.
    """

    def __init__(self, plane: Plane, output_weight: float) -> None:
        self.weight, self.curve = plane.weight, plane.curve
        self.centre: list[float] = plane.centre.tolist()
        if self.weight.normal is not None:
            self.top = 0.4 / self.weight.normal[1]  # 1 / √(2π) < 0.4
        elif self.weight.height is not None:
            self.top = self.weight.height
        else:
            raise TypeError(f"weight {self.weight.label} has no balls")
        self.size = self.top * 2 * plane.reach  # of (F - c) w, for the panels to compare rounding with
        with flint.ctx.workprec(PRECISION):
            self.root = flint.arb(output_weight).sqrt()
        self._cells = self._measured(self.curve.edges[:-1], self.curve.edges[1:])

    @cached_property
    def works(self) -> bool:
        """Whether f and f' have enclosures everywhere."""
        enclosed = all(None not in row for row in self._panels) and math.isfinite(self._total)
        return enclosed and bool(np.isfinite(self.cells(self.size).spare).all())

    def _density(self, ball: Any) -> Any:
        if self.weight.normal is None:
            return flint.arb(self.top) + 0 * ball
        mean, deviation = self.weight.normal
        return (-(((ball - mean) / deviation) ** 2) / 2).exp() / (deviation * (2 * flint.arb.pi()).sqrt())

    def _components(self, run: Run) -> tuple[Function, Function]:
        """F - c on a run, as functions of balls."""
        derivative, output = on_balls(run.piece.d1), on_balls(run.piece.f)
        return lambda ball: derivative(ball) - self.centre[0], lambda ball: self.root * output(ball) - self.centre[1]

    @cached_property
    def _panels(self) -> list[tuple[Panels | None, ...]]:
        """For each run, of w and of both components of (F - c) w."""
        rows = []
        for run in self.curve.runs:
            first, second = self._components(run)
            weighted = (lambda ball, part=part: part(ball) * self._density(ball) for part in (first, second))
            row = [panels(self._density, run.lo, run.hi, self.top)]
            rows.append((*row, *(panels(function, run.lo, run.hi, self.size) for function in weighted)))
        return rows

    @cached_property
    def _total(self) -> float:
        """A lower bound of ∫ |F - c|² w."""
        total = flint.arb(0)
        with flint.ctx.workprec(PRECISION):
            for run in self.curve.runs:
                first, second = self._components(run)

                def integrand(z: Any, _: bool, first: Function = first, second: Function = second) -> Any:
                    return (first(z) ** 2 + second(z) ** 2) * self._density(z)

                scale = (run.hi - run.lo) * self.size**2 / self.top
                total += flint.acb.integral(integrand, run.lo, run.hi, abs_tol=scale * TOLERANCE).real
        return below(total)

    def cells(self, spare: float) -> Cells:
        """Cells whose `spare` is at most the given one, or `MAX_CELLS`; later calls refine the same cells."""
        narrow = TINIEST * (self.curve.hi - self.curve.lo)
        while True:
            cells = self._cells
            middle = cells.lo + (cells.hi - cells.lo) / 2
            split = ~(cells.spare <= spare) & (cells.hi - cells.lo > narrow)
            split &= (cells.lo < middle) & (middle < cells.hi)
            split &= np.cumsum(split) <= MAX_CELLS - len(middle)
            if not split.any():
                return cells
            lo, middle, hi = cells.lo[split], middle[split], cells.hi[split]
            halves = self._measured(np.concatenate([lo, middle]), np.concatenate([middle, hi]))
            order = np.argsort(np.concatenate([cells.lo[~split], halves.lo]), kind="stable")
            pairs = zip(vars(cells).values(), vars(halves).values(), strict=True)
            self._cells = Cells(*(np.concatenate([old[~split], new])[order] for old, new in pairs))

    def _measured(self, lo: Array, hi: Array) -> Cells:
        runs = (self.curve.runs[i] for i in self.curve.run_at(hi).tolist())
        rows = np.array([self._bounds(*row) for row in zip(runs, lo.tolist(), hi.tolist(), strict=True)])
        return Cells(lo, hi, rows[:, 0], rows[:, 1], rows[:, 2:4], rows[:, 4:])

    def _bounds(self, run: Run, lo: float, hi: float) -> tuple[float, ...]:
        """Over a cell: bounds of |F'| and of w, the least and the greatest f' and sqrt(λ) f; inf or NaN for none."""
        cell = hull(lo, hi)
        derivative, output = run.piece.d1.arb(cell), self.root * run.piece.f.arb(cell)
        steepest = math.hypot(above(abs(run.piece.d2.arb(cell))), above(abs(self.root * derivative))) * ROOM
        box = below(derivative), below(output), above(derivative), above(output)
        return steepest, above(self._density(cell)), *box

    def of(self, cells: Cells) -> ProvenCells:
        """The proven numbers of `cells`. Only where this plane `works`."""
        columns = zip(*(self._on_run(i, cells) for i in range(len(self.curve.runs))), strict=True)
        mass, radius, first, error = (np.concatenate(column) for column in columns)
        low, high = cells.low.min(axis=0), cells.high.max(axis=0)
        reach = math.hypot(*np.maximum(high - self.centre, self.centre - low)) * ROOM
        unsure = mass <= radius  # its mass counts as 0: an error of twice the radius, and of all its first moment
        error = np.where(unsure, error + np.abs(first).sum(axis=1), error)
        radius, mass = np.where(unsure, 2 * radius, radius), np.where(unsure, 0.0, mass)
        mean = self.centre + np.divide(first, mass[:, None], out=np.zeros_like(first), where=mass[:, None] > 0)
        error = error + 4 * EPS * mass * (np.abs(mean).sum(axis=1) + np.abs(self.centre).sum())
        between = math.fsum((mass[:, None] * (mean - self.centre) ** 2).ravel())
        doubt = math.fsum(2 * reach * error + reach**2 * radius) + 32 * EPS * math.fsum(mass) * reach**2
        length = (math.fsum(cells.steepest * (cells.hi - cells.lo)) + self._leaps) * ROOM
        sizes = float(cells.spare.max()), float(cells.spread.max()), length, math.hypot(*(high - low)) * ROOM
        return ProvenCells(mass, mean, *sizes, inside=self._total - between - doubt)

    def _on_run(self, index: int, cells: Cells) -> tuple[Array, ...]:
        """For the cells in a run: μ and the bound δμ, m and the bound δm."""
        run = self.curve.runs[index]
        inside = (run.lo <= cells.lo) & (cells.hi <= run.hi)
        lo, hi = cells.lo[inside], cells.hi[inside]
        scales = (self.top, self.size, self.size)
        rows, length = zip(self._panels[index], scales, strict=True), hi - lo
        known = [each.averages(each.parts(lo, hi), scale) for each, scale in rows if each]
        integrals = [(mean * length, (error + 2 * EPS * np.abs(mean)) * length * ROOM) for mean, error in known]
        (mass, radius), (first, first_error), (second, second_error) = integrals
        return mass, radius, np.column_stack([first, second]), first_error + second_error

    @property
    def _leaps(self) -> float:
        """The distances that the curve leaps from run to run."""
        total = flint.arb(0)
        for left, right in zip(self.curve.runs, self.curve.runs[1:], strict=False):
            at = flint.arb(left.hi)
            leap = right.piece.d1.arb(at) - left.piece.d1.arb(at)
            total += abs(leap) + self.root * abs(right.piece.f.arb(at) - left.piece.f.arb(at))
        return above(total)
