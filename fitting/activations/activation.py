"""An activation function, and all that is derived from its symbolic definition."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike
from sympy import Expr

from actfit.fitting.activations import calculus
from actfit.fitting.activations.balls import flint
from actfit.fitting.activations.calculus import Piece
from actfit.fitting.activations.functions import x
from actfit.fitting.activations.grammar import parse
from actfit.fitting.activations.singularities import settled
from actfit.fitting.activations.tape import Array, Tape
from actfit.fitting.errors import InputError


@dataclass(frozen=True)
class Branch:
    """A maximal interval on which f is monotone.

    Attributes
    ----------
    lo, hi : float
        Its ends.
    direction : int
        1 where f is increasing, -1 where it is decreasing, 0 where it is constant.
    """

    lo: float
    hi: float
    direction: int


@dataclass(frozen=True)
class Minimum:
    """The infimum of f.

    Attributes
    ----------
    value : float
        The infimum.
    at : float or None
        A point where it is attained; None where it is only approached.
    """

    value: float
    at: float | None


@dataclass(frozen=True)
class Limits:
    """Limits at -inf and +inf; NaN where there is none."""

    left: float
    right: float


@dataclass(frozen=True)
class Activation:
    """f, by its expression in `x` and named parameters; everything else is derived.

    At a kink, f' is the derivative of the branch that holds there, which is how torch defines it.

    Attributes
    ----------
    name : str
        The function's name.
    expr : str
        Text of the grammar in `fitting.activations.grammar`.
    params : mapping of str to float
        A value for each parameter of the expression.
    """

    name: str
    expr: str
    params: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if x not in self.f_expression.free_symbols:
            raise InputError(f"expression must be a function of x, got {self.expr!r}")

    def __reduce__(self) -> tuple[type["Activation"], tuple[str, str, dict[str, float]]]:
        # Derived attributes are not pickled, as balls cannot be: they are computed again where they are needed.
        return Activation, (self.name, self.expr, dict(self.params))

    @cached_property
    def f_expression(self) -> Expr:
        """f with its parameters put in, and quotients such as sin(x)/x made functions of all x."""
        return settled(parse(self.expr, self.params))

    @cached_property
    def d1_expression(self) -> Expr:
        """f', built from the stable functions."""
        return self.f_expression.diff(x)

    @cached_property
    def _tapes(self) -> tuple[Tape, Tape]:
        return Tape(self.f_expression), Tape(self.d1_expression)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The maximal open intervals on which f, f' and f'' are smooth."""
        return tuple(calculus.pieces(self.f_expression, self.d1_expression))

    @cached_property
    def breakpoints(self) -> tuple[float, ...]:
        """Where pieces meet: kinks and jumps of f or f'."""
        return tuple(piece.lo for piece in self.pieces[1:])

    def f(self, at: ArrayLike) -> Array:
        """f at float64 points (any shape); limits at ±inf, NaN at NaN."""
        return self._evaluate(self._tapes[0], self.limits, at)

    def df(self, at: ArrayLike) -> Array:
        """f' at float64 points (any shape); limits at ±inf, NaN at NaN."""
        return self._evaluate(self._tapes[1], self.derivative_limits, at)

    @staticmethod
    def _evaluate(tape: Tape, limits: Limits, at: ArrayLike) -> Array:
        points = np.asarray(at, dtype=np.float64)
        result = np.atleast_1d(calculus.values(tape, np.atleast_1d(points)))
        ends = np.atleast_1d(points)
        result[ends == -math.inf], result[ends == math.inf] = limits.left, limits.right
        result[np.isnan(ends)] = math.nan  # where all conditions are false, a Piecewise takes its last branch
        return result.reshape(points.shape)

    @cached_property
    def limits(self) -> Limits:
        """Limits of f."""
        return Limits(calculus.limit(self.pieces[0].f, -1), calculus.limit(self.pieces[-1].f, 1))

    @cached_property
    def derivative_limits(self) -> Limits:
        """Limits of f'."""
        return Limits(calculus.limit(self.pieces[0].d1, -1), calculus.limit(self.pieces[-1].d1, 1))

    @cached_property
    def parity(self) -> str:
        """The parity of f': 'even', 'odd' or 'none'; decided at 60 digits, at 39 arbitrary points."""
        verdicts = set()
        with flint.ctx.workprec(calculus.PRECISION):
            for k in range(1, 40):
                point = flint.arb(k).sqrt() / 7 + flint.arb(k**3) / 1000
                right, left = (self._tapes[1].arb(sign * point) for sign in (1, -1))
                verdicts.add(((right - left).contains(0), (right + left).contains(0)))
        even, odd = (all(column) for column in zip(*verdicts, strict=True))
        return "even" if even else "odd" if odd else "none"

    @cached_property
    def step_values(self) -> tuple[float, ...] | None:
        """The values that f' takes when it is a step function, increasing; None when it is not."""
        if any(piece.d1.expression.has(x) for piece in self.pieces):
            return None
        return tuple(sorted({float(piece.d1.expression) for piece in self.pieces}))

    def turning_points(self, order: int = 0) -> tuple[float, ...]:
        """Where a function changes direction: rising before, falling after, or the reverse.

        A plateau between a rise and a fall is not listed.

        Parameters
        ----------
        order : int
            0: of f; 1: of f'.
        """
        moves: list[tuple[float, int]] = []
        for run in self._smooth_runs(order):
            jump = self.jump(order, run.lo)
            moves += [(run.lo, jump)] if jump else []
            moves.append((run.lo, run.direction))
        return tuple(dict.fromkeys(at for (_, before), (at, after) in pairwise(moves) if before * after < 0))

    @cached_property
    def branches(self) -> tuple[Branch, ...]:
        """The monotone branches of f, left to right; flat parts are branches of direction 0."""
        return self._runs(0)

    def derivative_runs_within(self, lo: float, hi: float) -> tuple[Branch, ...]:
        """Maximal intervals in [lo, hi] on which f' is smooth and monotone: like branches, but cut at every break.

        Those outside are not computed: a sine has thousands.
        """
        return tuple(self._smooth_runs(1, lo, hi))

    def _runs(self, order: int) -> tuple[Branch, ...]:
        merged: list[Branch] = []
        for run in self._smooth_runs(order):
            if merged:
                last = merged[-1]
                jump = self.jump(order, run.lo)
                if last.direction == run.direction and jump * run.direction >= 0 and (run.direction or not jump):
                    merged[-1] = Branch(last.lo, run.hi, run.direction)
                    continue
            merged.append(run)
        return tuple(merged)

    def _smooth_runs(self, order: int, least: float = -math.inf, most: float = math.inf) -> list[Branch]:
        runs = []
        for piece in self.pieces:
            first, last = max(piece.lo, least), min(piece.hi, most)
            if not first < last:
                continue
            derivative = piece.d2 if order else piece.d1
            if derivative.expression == 0:
                runs.append(Branch(first, last, 0))
                continue
            inner = [float(root) + 0.0 for root in calculus.sign_changes(derivative, first, last)]
            for lo, hi in pairwise([first, *inner, last]):
                runs.append(Branch(lo, hi, calculus.sign_inside(derivative, lo, hi)))
        return runs

    def jump(self, order: int, at: float) -> int:
        """Direction in which f (order 0) or f' (order 1) jumps at a breakpoint; 0 where it is continuous."""
        for left, right in pairwise(self.pieces):
            if right.lo == at:
                with flint.ctx.workprec(calculus.PRECISION):
                    before, after = ((p.d1 if order else p.f).arb(flint.arb(at)) for p in (left, right))
                    derivatives = [abs((p.d2 if order else p.d1).arb(flint.arb(at))) for p in (left, right)]
                    # The breakpoint is a float64: a step that its rounding explains is no jump.
                    step, rounding = after - before, sum(derivatives) * abs(at) * 2.0**-52
                return 1 if step > rounding else -1 if step < -rounding else 0
        return 0

    @cached_property
    def minimum(self) -> Minimum:
        """The infimum of f over the whole line; NaN where f is not defined on it or has no limit it falls to."""
        reached = sorted({*self.breakpoints, *self.turning_points()}, key=abs)
        attained = [(float(self.f(point)), point) for point in reached]
        approached = [self.limits.left, self.limits.right]
        approached += [
            float(piece.f.numpy(np.array(end)))
            for piece in self.pieces
            for end in (piece.lo, piece.hi)
            if math.isfinite(end)
        ]
        known = [value for value in [*approached, *(value for value, _ in attained)] if not math.isnan(value)]
        infimum = min(known, default=math.nan) + 0.0  # no -0.0
        far = np.outer([-1.0, 1.0], [1e2, 1e5, 1e10, 1e100])
        if not np.all(self.f(far) >= infimum):
            return Minimum(math.nan, None)
        return Minimum(infimum, next((point for value, point in attained if value == infimum), None))
