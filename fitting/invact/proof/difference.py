"""The error of a candidate, e(x) = q(f(x)) - f'(x), on one arc: at points, and enclosed over intervals of x.

It is a function of x and not of y, so that no inverse of f is needed and nothing is singular where f' = 0.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import flint
import numpy as np
import sympy
from sympy import Expr, Symbol

from actfit.fitting.activations import calculus
from actfit.fitting.activations.arithmetics import Arithmetic
from actfit.fitting.activations.enclosures import HULL, ROOTS, SERIES
from actfit.fitting.activations.tape import Array, Tape
from actfit.fitting.invact.branches import Arc
from actfit.fitting.invact.engines.adapted import CLOSED_FORMS
from actfit.fitting.invact.formula import Candidate
from actfit.fitting.invact.proof.ranges import around, inside, roots_are_real, span
from actfit.fitting.invact.variable import S, Y

ORDER = 14  # of the Taylor polynomial's remainder
PRECISION = 128  # bits
FAR = 2.0**16  # |x| beyond which 1 + tanh(x) times x needs more bits
FAR_PRECISION = 512
PARTS = 64  # between the points at which a Taylor polynomial is evaluated
ROUNDING = 2.0**-8  # of the numbers in conditions of closed forms: to bfloat16 at the coarsest
_ROUNDING = 2.0**-47  # of a sum of ORDER products of powers in float64, relative to the sum of their sizes
_HUGE = 1e300  # sums of such numbers may overflow

_BINOMIALS = [[math.comb(j, k) for k in range(j + 1)] for j in range(ORDER + 2)]
_NODES = np.linspace(-1.0, 1.0, PARTS + 1)
_POWERS = np.vander(_NODES, ORDER, increasing=True)
_CURVATURE = np.arange(ORDER) * np.arange(-1.0, ORDER - 1.0) * (2.0 / PARTS) ** 2 / 8.0


@dataclass(frozen=True)
class Enclosure:
    """|e| <= `upper` on a cell; its largest value is about `about`, near the point `at`; NaN where unknown."""

    upper: float
    at: float = math.nan
    about: float = math.nan


@dataclass(frozen=True)
class Difference:
    """e on one arc without its ends; where f' has no bound, e / max(1, |f'|).

    A condition in q that compares y with its value at an end is decided as inside the arc. In a closed form such values
    are rounded as stored outputs are, while y here is not rounded. On a flat arc y is one number, the float64 next to f
    there.
    """

    candidate: Candidate
    arc: Arc

    @cached_property
    def _formulas(self) -> tuple[Expr, Expr]:
        """s in y and q in y and s."""
        s, q = (tape.expression for tape in self.candidate.tapes)
        rounding = ROUNDING if self.candidate.form.engine in CLOSED_FORMS else 0.0
        return inside(s, *self.arc.range), inside(q, *self.arc.range, rounding)

    @cached_property
    def _tapes(self) -> tuple[Tape, Tape, Arithmetic]:
        """s, q and the arithmetic that encloses them."""
        s, q = self._formulas
        known = {Y: around(*self.arc.range)}
        roots = roots_are_real(s, known) and roots_are_real(q, {**known, S: span(s, known)})
        return Tape(s, Y), Tape(q, Y, S), ROOTS if roots else HULL

    @cached_property
    def _steps(self) -> list[Tape]:
        """s, each divisor of q, and q, in terms of y and the steps before.

        A divisor that is small next to its own terms must be enclosed as one function: else its ball may hold 0.
        """
        s, q = self._formulas
        tapes = [Tape(s, Y)]
        divisors = {node.base for node in q.atoms(sympy.Pow) if node.exp.is_negative and node.base.has(Y, S)}
        named: dict[Expr, Symbol] = {}
        inner_first = sorted(divisors - {Y, S}, key=lambda divisor: (divisor.count_ops(), str(divisor)))
        for divisor in inner_first:
            tapes.append(Tape(divisor.xreplace(named), Y, S, *named.values()))
            named[divisor] = Symbol(f"d{len(named)}", real=True)
        return [*tapes, Tape(q.xreplace(named), Y, S, *named.values())]

    @cached_property
    def _relative(self) -> bool:
        ends = [(self.arc.lo, -1), (self.arc.hi, 1)]
        return any(math.isinf(end) and math.isinf(calculus.limit(self.arc.piece.d1, sign)) for end, sign in ends)

    def _unit(self, derivative: Any) -> Any:
        """The unit of e where f' is in the ball `derivative`: at most max(1, |f'|)."""
        lower = abs(derivative).lower()
        return lower if self._relative and lower > 1 else flint.arb(1)

    def scan(self, x: Array) -> Array:
        """|e| at float64 points of the arc, in float64 arithmetic: shows where |e| is large."""
        with np.errstate(all="ignore"):
            derivative = self.arc.piece.d1.numpy(x)
            error = np.abs(self.candidate(self.arc.piece.f.numpy(x)) - derivative)
            return error / np.maximum(np.abs(derivative), 1.0) if self._relative else error

    def at(self, x: float) -> Any:
        """|e| at one point, as a ball."""
        with flint.ctx.workprec(_precision(x)):
            if self.arc.direction == 0:
                return abs(self._of_output(flint.arb(self.arc.y[0])))
            point = flint.arb(x)
            derivative = self.arc.piece.d1.arb(point)
            return abs(self._of_output(self.arc.piece.f.arb(point)) - derivative) / self._unit(derivative)

    def _of_output(self, y: Any) -> Any:
        s, q, arithmetic = self._tapes
        return q.run(arithmetic, y, s.run(arithmetic, y))

    def over(self, lo: float, hi: float, enough: float) -> Enclosure:
        """An enclosure of |e| over [lo, hi]. An enclosure that is not above `enough` need not be sharp.

        e's Taylor polynomial about the middle m has the remainder e⁽ⁿ⁾(ξ)/n!·(x - m)ⁿ, the n-th coefficient of the
        series computed from the ball [lo, hi] (Lagrange). Where e is not analytic on the cell, or a rough enclosure is
        enough, only the balls of y and f' are used.
        """
        middle = lo + (hi - lo) / 2
        if self.arc.direction == 0:
            return Enclosure(_up(self.at(middle)))
        with _settings(_precision(max(abs(lo), abs(hi)))):
            enclosure = self._enclosed(middle, max(middle - lo, hi - middle) * (1 + 2.0**-52), enough)
            if math.isinf(enclosure.upper) and min(abs(lo), abs(hi)) >= calculus.SCAN_RANGE:
                return self._between(flint.arb(lo), flint.arb(hi))
        return enclosure

    def _enclosed(self, middle: float, reach: float, enough: float) -> Enclosure:
        half = flint.arb(reach)
        thin, wide = (self._output(ball) for ball in (flint.arb(middle), flint.arb(middle, half)))
        if not _finite(thin) or not _finite(wide):
            return Enclosure(math.inf)
        tight = _recentred(thin, wide, half)
        unit = self._unit(tight[1])
        upper = _up((self._of_output(tight[0]) - tight[1]) / unit)
        if upper <= enough:
            return Enclosure(upper)
        sharp = self._taylor(thin, tight, half, unit)
        return Enclosure(min(upper, sharp.upper), middle + reach * sharp.at, sharp.about)

    def _between(self, lo: Any, hi: Any) -> Enclosure:
        """An enclosure from the ends of a cell so far out that f is at its asymptote, and f and f' are monotone.

        There balls of x give no bound for a double exponential such as exp(-exp(-x)).
        """
        y, derivative = (tape.arb(lo).union(tape.arb(hi)) for tape in (self.arc.piece.f, self.arc.piece.d1))
        return Enclosure(_up((self._of_output(y) - derivative) / self._unit(derivative)))

    def _output(self, ball: Any) -> list[Any]:
        """Coefficients of y = f(x) about the points of a ball."""
        return _coefficients(self.arc.piece.f.run(SERIES, flint.arb_series([ball, 1], ORDER + 2)), ORDER + 2)

    def _taylor(self, thin: list[Any], tight: list[Any], half: Any, unit: Any) -> Enclosure:
        """The enclosure by Taylor's theorem; its `at` is counted from the middle, in units of `half`.

        `thin` and `tight` are the coefficients of y at the middle and over the cell.
        """
        values = [(thin[:-1], tight[:-1])]
        for tape in self._steps:
            known = ([flint.arb_series(value[kind], ORDER + 1) for value in values] for kind in (0, 1))
            exact, wide = (_coefficients(tape.run(SERIES, *arguments), ORDER + 1) for arguments in known)
            if not _finite(exact) or not _finite(wide):
                return Enclosure(math.inf)
            values.append((exact, _recentred(exact, wide, half)))
        scales = [half**k / unit for k in range(ORDER + 1)]
        q, remainder = values[-1][0], values[-1][1][ORDER] - (ORDER + 1) * tight[ORDER + 1]
        scaled = [(q[k] - (k + 1) * thin[k + 1]) * scales[k] for k in range(ORDER)]
        numbers = np.array([float(coefficient.mid()) for coefficient in scaled])
        if not np.all(np.abs(numbers) < _HUGE):
            return Enclosure(math.inf)
        rests = (abs(ball - number) for ball, number in zip(scaled, numbers.tolist(), strict=True))
        rest = sum(rests, flint.arb(0))
        rest += abs(remainder) * scales[ORDER]
        # Between two nodes a w apart a function is within w²/8·max |P''| of the line through its values there.
        sizes = np.abs(_POWERS @ numbers)
        best, loss = int(np.argmax(sizes)), float(np.abs(numbers) @ (_CURVATURE + _ROUNDING))
        return Enclosure(_up(float(sizes[best]) + loss + rest), float(_NODES[best]), float(sizes[best]))


@contextmanager
def _settings(precision: int) -> Iterator[None]:
    """flint with that many bits and long enough series: one that it cuts short would seem to end in zeros."""
    before = flint.ctx.cap
    flint.ctx.cap = ORDER + 2
    try:
        with flint.ctx.workprec(precision):
            yield
    finally:
        flint.ctx.cap = before


def _precision(x: float) -> int:
    return PRECISION if abs(x) <= FAR else FAR_PRECISION


def _up(ball: Any) -> float:
    """A float64 that |ball| does not exceed."""
    upper = abs(ball).upper()
    if not upper.is_finite():
        return math.inf
    return math.nextafter(float(upper), math.inf) if upper > 0 else 0.0


def _finite(coefficients: Iterable[Any]) -> bool:
    return all(coefficient.is_finite() for coefficient in coefficients)


def _coefficients(u: Any, count: int) -> list[Any]:
    return [u[k] for k in range(count)] if isinstance(u, flint.arb_series) else [u, *[flint.arb(0)] * (count - 1)]


def _recentred(thin: list[Any], wide: list[Any], half: Any) -> list[Any]:
    """`wide`, enclosures of f⁽ᵏ⁾/k! over a cell, made tighter by those at its middle.

    f⁽ᵏ⁾/k! at m + t is the sum of binom(j, k)·thin[j]·t**(j - k), the last term with wide[-1] for its coefficient:
    Taylor's theorem for f⁽ᵏ⁾. Next to T, where y - f(T) is like (x - T)², only this keeps y above f(T), or below.
    """
    last = len(thin) - 1
    powers = [flint.arb(0, half**k) if k % 2 else flint.arb(0).union(half**k) for k in range(last + 1)]
    tight = []
    for k in range(last):
        total = thin[k]
        for j in range(k + 1, last):
            total += _BINOMIALS[j][k] * thin[j] * powers[j - k]
        total += _BINOMIALS[last][k] * wide[last] * powers[last - k]
        tight.append(total.intersection(wide[k]))
    return [*tight, wide[last]]
