"""The minimax engine: polynomials and rational functions of s, and polynomials times an exponential tail.

q = p(s)/r(s) or q = limit + p(s) * 2**(rate * s**power). A fit begins at the least squares solution of the linearised
problem (Sanathanan and Koerner's iteration), or at the best formula of one degree less, and is then refitted like every
other formula. No pole may lie in the range of s.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from sympy import Expr, Integer, Rational, Symbol

from actfit.fitting.activations.tape import Array
from actfit.fitting.invact.engines.problem import Problem, Tail, Target
from actfit.fitting.invact.engines.refit import improve
from actfit.fitting.invact.formula import Form
from actfit.fitting.invact.variable import S, constant

ENGINE = "minimax"
ITERATIONS = 12  # of the linearised problem
MOST = 18  # constants of a formula
BEYOND = 5  # instructions by which a formula may cost more than the first that is good enough
AHEAD, BEHIND = 5, 1  # by which the degree of the numerator may lie above the denominator's, or below


@dataclass(frozen=True)
class Shape:
    """Degrees of numerator and denominator in s - center; whether q(0) = 0; an exponential tail, or none."""

    numerator: int
    denominator: int = 0
    zero: bool = False
    center: float = 0.0
    tail: Tail | None = None

    @property
    def above(self) -> int:
        """Constants of the numerator."""
        return self.numerator + (not self.zero)

    @property
    def price(self) -> int:
        """About the number of instructions, without those of s; shapes are searched in this order."""
        return self.numerator + self.denominator + 8 * bool(self.denominator) + 5 * (self.tail is not None)

    def form(self, values: Sequence[float]) -> Form:
        """The formula in Horner's form; `values` are the constants of numerator, denominator and tail."""
        above = [constant(i) for i in range(self.above)]
        below = [constant(i) for i in range(self.above, self.above + self.denominator)]
        limit = Integer(0) if self.tail is None else Rational(self.tail.limit)
        z = S - Rational(self.center)
        top = S * horner(above, z) - limit if self.zero else horner(above, z)
        q = top / (1 + z * horner(below, z)) if below else top
        if self.tail is not None:
            q = limit + q * Integer(2) ** (constant(self.above + self.denominator) * S**self.tail.power)
        return Form(q, tuple(float(value) for value in values), ENGINE)


def horner(coefficients: Sequence[Symbol], z: Expr) -> Expr:
    """c0 + z*(c1 + z*(...)), unexpanded."""
    result: Expr = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        result = coefficient + z * result
    return result


def search(problem: Problem) -> list[Form]:
    """The Pareto front of all shapes: each formula costs more instructions than those before it, and errs less."""
    known: dict[Shape, Array] = {}
    front: list[tuple[float, Form]] = []
    most = math.inf
    for shape in _shapes(problem):
        if shape.price > most or (front and front[-1][0] <= problem.stop_cost):
            break
        fitted = fit(shape, problem.target, known)
        if fitted is None:
            continue
        constants, cost = fitted
        known[shape] = constants
        if not front or cost < front[-1][0]:
            front.append((cost, shape.form(constants.tolist())))
            if cost <= problem.good_cost:
                most = min(most, shape.price + BEYOND)
    return [form for _, form in front]


def _shapes(problem: Problem) -> list[Shape]:
    """All shapes, cheapest first; a shape comes after the shapes that its fit may begin at."""
    tails = [None] if problem.tail is None else [None, problem.tail]
    shapes = [
        Shape(numerator, denominator, problem.zero, problem.center, tail)
        for numerator in range(1, MOST)
        for denominator in range(MOST - numerator)
        for tail in tails
        if not denominator or (-BEHIND <= numerator - denominator <= AHEAD and tail is None)
    ]
    return sorted(shapes, key=lambda shape: (shape.price, shape.denominator, shape.tail is not None))


def fit(shape: Shape, target: Target, smaller: Mapping[Shape, Array]) -> tuple[Array, float] | None:
    """The best constants of this shape and their cost; None if all that were tried have a pole.

    The fit begins at the best of these: the linearised problem, and the shapes of one degree less among `smaller`,
    whose optimum is a formula of this shape too.
    """
    model = _ShapeModel(shape, target)
    starts = [model.linearised()]
    for above, below in ((1, 0), (0, 1)):
        less = replace(shape, numerator=shape.numerator - above, denominator=shape.denominator - below)
        if less in smaller:
            top, bottom, rest = np.split(smaller[less], [less.above, less.above + less.denominator])
            starts.append(np.concatenate([top, np.zeros(above), bottom, np.zeros(below), rest]))
    start = min((constants for constants in starts if constants is not None), key=model.cost, default=None)
    if start is None:
        return None
    poleless = [constants for constants in (improve(model, target, start), start) if model.has_no_pole(constants)]
    return (poleless[0], model.cost(poleless[0])) if poleless else None


class _ShapeModel:
    """q = limit + factor·p/r and its derivatives at the points of a target, in closed form for speed."""

    def __init__(self, shape: Shape, target: Target) -> None:
        self.shape, self.target = shape, target
        z = (target.s - shape.center)[:, None]
        self._above = z ** np.arange(shape.above) * (target.s[:, None] if shape.zero else 1.0)
        self._below = z ** np.arange(1, shape.denominator + 1)
        self._power = np.zeros_like(target.s) if shape.tail is None else target.s**shape.tail.power
        self._limit = 0.0 if shape.tail is None else shape.tail.limit
        self._fixed = -self._limit if shape.zero else 0.0  # of the numerator, for q(0) = 0

    def _parts(self, constants: Array) -> tuple[Array, Array, Array]:
        """p, r and the factor."""
        top, bottom, rate = np.split(constants, [self.shape.above, self.shape.above + self.shape.denominator])
        with np.errstate(all="ignore"):
            factor = np.exp2(rate[0] * self._power) if len(rate) else np.ones_like(self._power)
        return self._fixed + self._above @ top, 1.0 + self._below @ bottom, factor

    def error(self, constants: Array) -> Array:
        p, r, factor = self._parts(constants)
        with np.errstate(all="ignore"):
            return np.asarray(self._limit + factor * p / r - self.target.value)

    def jacobian(self, constants: Array) -> Array:
        p, r, factor = self._parts(constants)
        with np.errstate(all="ignore"):
            weight = (factor / r)[:, None]
            columns = [self._above * weight, -self._below * weight * (p / r)[:, None]]
            if self.shape.tail is not None:
                columns.append((math.log(2.0) * self._power * factor * p / r)[:, None])
        return np.nan_to_num(np.concatenate(columns, axis=1), nan=0.0, posinf=0.0, neginf=0.0)

    def cost(self, constants: Array) -> float:
        return self.target.cost_of(self.error(constants))

    def has_no_pole(self, constants: Array) -> bool:
        """Whether r has no root between the least and the largest s, nor close to these."""
        bottom = constants[self.shape.above :][: self.shape.denominator]
        with np.errstate(all="ignore"):
            roots = np.roots([*bottom[::-1], 1.0]) + self.shape.center
        low, high = float(self.target.s.min()), float(self.target.s.max())
        margin = 1e-3 * (high - low)
        near = (np.abs(roots.imag) <= margin) & (low - margin <= roots.real) & (roots.real <= high + margin)
        return not bool(near.any())

    def linearised(self) -> Array | None:
        """Constants by least squares of p - (value - limit)·r; in each iteration rows are divided by the last r."""
        shape, tail = self.shape, self.shape.tail
        factor = np.ones_like(self._power) if tail is None else np.exp2(tail.rate * self._power)
        above, weight = self._above * factor[:, None], self.target.weight
        value = self.target.value - self._limit - self._fixed * factor
        denominator, best = np.ones_like(weight), None
        for _ in range(ITERATIONS if shape.denominator else 1):
            rows = np.concatenate([above, -value[:, None] * self._below], axis=1) * (weight / denominator)[:, None]
            lengths = np.linalg.norm(rows, axis=0) + 1e-300
            solution, *_ = np.linalg.lstsq(rows / lengths, value * weight / denominator, rcond=1e-14)
            constants = solution / lengths
            denominator = 1.0 + self._below @ constants[shape.above :]
            if np.all(denominator > 1e-3 * denominator.max()):
                error = float(np.abs(weight * (above @ constants[: shape.above] / denominator - value)).max())
                if best is None or error < best[0]:
                    best = (error, constants)
            denominator = np.maximum(np.abs(denominator), 1e-6)
        if best is None:
            return None
        return best[1] if tail is None else np.append(best[1], tail.rate)
