"""A formula q(y) for g(y) = f'(f⁻¹(y)): the variable s, a form in y and s, and the two together, a candidate.

s is the variable in which g is smooth: the root of the distance from the anchor (see `branches`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import sympy
from numpy.typing import NDArray
from sympy import Expr, Integer, Rational, Symbol
from sympy.printing.str import StrPrinter

from fitting.activations.grammar import parse_formula
from fitting.activations.heads import maximum, minimum
from fitting.activations.tape import Array, Tape
from fitting.errors import InputError
from fitting.invact.price import Price, price

Y = Symbol("y", real=True)
S = Symbol("s", real=True)


def constant(index: int) -> Symbol:
    """The symbol c0, c1, ..."""
    return Symbol(f"c{index}", real=True)


@dataclass(frozen=True)
class Form:
    """`expression` in `Y`, `S` and constant(0), constant(1), ..., which have `values` (float64)."""

    expression: Expr
    values: tuple[float, ...]
    engine: str

    @property
    def constants(self) -> tuple[Symbol, ...]:
        return tuple(constant(i) for i in range(len(self.values)))


def evaluate(form: Form, y: Array, s: Array) -> Array:
    """The formula in float64 with its constants as they are; y and s broadcast."""
    return Tape(form.expression, Y, S, *form.constants).numpy(y, s, *form.values)


T, T_LOW, LOW, HIGH, END, RADIUS = (Symbol(name, real=True) for name in ("t", "t_low", "low", "high", "end", "radius"))


@dataclass(frozen=True)
class Variable:
    """s = ±root(min(max(±(y - t), low or 0), high)), or y itself kept within low and high where there is no T.

    anchor: f(T), or None. anchor_low: the rest of it, where one float32 would be felt. upward: whether y lies above
    f(T). even: |y| stands for y. low: positive, makes the best of the outputs stored next to f(T), each of which
    stands for many x. negative: s < 0, for the left of two sides that share one formula. end: the finite limit at
    which f' vanishes again; then s is tan(θ/2) on the half circle from f(T) to it, which softens the logarithm that
    g has there.
    """

    order: int = 1
    anchor: float | None = None
    anchor_low: float = 0.0
    upward: bool = True
    even: bool = False
    low: float | None = None
    high: float | None = None
    negative: bool = False
    end: float | None = None

    @property
    def constants(self) -> dict[str, float]:
        """The named numbers, those that are there."""
        named = {"t": self.anchor or None, "t_low": self.anchor_low or None, "low": self.low, "high": self.high}
        if self.end is not None:
            named |= {"end": self.end or None, "radius": self.radius}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def radius(self) -> float:
        """Root of the distance from f(T) to the end."""
        return float(np.float32(abs((self.end or 0.0) - (self.anchor or 0.0)) ** 0.5))

    @cached_property
    def symbolic(self) -> Expr:
        """s as an expression of y and its constants' symbols."""
        y = sympy.Abs(Y) if self.even else Y
        zero: Expr = Integer(0)
        lowest: Expr = LOW if self.low is not None else zero
        if self.anchor:
            y = y - T if self.upward else T - y
        elif self.anchor is not None and not self.upward:
            y = -y
        if self.anchor_low:
            zero = lowest = T_LOW if self.upward else -T_LOW
        if self.low is not None or (self.anchor is not None and not self.even):
            y = maximum(y, lowest)
        if self.high is not None:
            y = minimum(y, HIGH)
        root = (y - zero) ** Rational(1, self.order)
        if self.end is not None:
            end = END if self.end else Integer(0)
            rest = maximum(end - Y if self.upward else Y - end, Integer(0))
            root = root / (RADIUS + sympy.sqrt(rest))
        return -root if self.negative else root

    @cached_property
    def expression(self) -> Expr:
        """s as an expression of y."""
        return self.symbolic.xreplace({Symbol(key, real=True): Rational(one) for key, one in self.constants.items()})

    def __call__(self, y: Array) -> Array:
        """s at outputs y (float64, any shape)."""
        return Tape(self.expression, Y).numpy(np.asarray(y, dtype=np.float64))

    def rounded(self) -> "Variable":
        """With its constants as float32, which is how kernels have them."""

        def short(value: float | None) -> float | None:
            return None if value is None else float(np.float32(value))

        return replace(
            self,
            anchor=short(self.anchor),
            anchor_low=float(np.float32(self.anchor_low)),
            low=short(self.low),
            high=short(self.high),
            end=short(self.end),
        )


class Formula:
    """q(y) as two tapes: of s in y, and of q in y and s, with numbers for constants."""

    tapes: tuple[Tape, Tape]

    def __call__(self, y: Array) -> Array:
        """q at float64 outputs, in float64."""
        y = np.asarray(y, dtype=np.float64)
        return self.tapes[1].numpy(y, self.tapes[0].numpy(y))

    def float32(self, y: Array) -> NDArray[np.float32]:
        """q as a kernel has it: in float32, from outputs that are float32 numbers."""
        return self.tapes[1].numpy32(y, self.tapes[0].numpy32(y))


@dataclass(frozen=True)
class Stored(Formula):
    """A formula that a file spells."""

    tapes: tuple[Tape, Tape]


@dataclass(frozen=True)
class Candidate(Formula):
    """q(y) = form(y, s) with s = variable(y). Constants are float32 numbers, but for closed and published forms."""

    form: Form
    variable: Variable

    def rounded(self) -> "Candidate":
        """With every constant the nearest float32."""
        values = tuple(float(np.float32(value)) for value in self.form.values)
        return Candidate(replace(self.form, values=values), self.variable.rounded())

    @property
    def constants(self) -> dict[str, float]:
        """The named numbers of s, then those of the form."""
        of_variable = {} if self.variable.symbolic == Y else self.variable.constants
        names = (symbol.name for symbol in self.form.constants)
        return {**of_variable, **dict(zip(names, self.form.values, strict=True))}

    @cached_property
    def price(self) -> Price:
        """Of this formula alone."""
        return price(self.variable.symbolic, self.form.expression)

    @cached_property
    def tapes(self) -> tuple[Tape, Tape]:  # type: ignore[override]
        """Of s in y, and of q in y and s, with numbers for constants."""
        numbers = {c: Rational(value) for c, value in zip(self.form.constants, self.form.values, strict=True)}
        return Tape(self.variable.expression, Y), Tape(self.form.expression.xreplace(numbers), Y, S)


def pair_price(left: Candidate, right: Candidate) -> Price:
    """Of both sides and the choice between them by the bit.

    One formula with other constants is evaluated once, each constant that differs being selected; two formulas are
    both evaluated, sharing what they can.
    """
    plain = replace(left.variable, negative=False), replace(right.variable, negative=False)
    both = _selected(price(*(part for i, one in enumerate((left, right)) for part in _parts(one, i))), 1)
    if left.form.expression != right.form.expression or plain[0].symbolic != plain[1].symbolic:
        return both
    pairs = [*zip(left.form.values, right.form.values, strict=True)]
    pairs += [(plain[0].constants[key], plain[1].constants[key]) for key in plain[0].constants]
    pairs += [(float(left.variable.negative), float(right.variable.negative))]
    once = _selected(Candidate(right.form, plain[1]).price, sum(a != b for a, b in pairs))
    return min(both, once, key=lambda one: one.total)


def _selected(one: Price, selections: int) -> Price:
    return replace(one, other=one.other + selections)


def _parts(candidate: Candidate, index: int) -> tuple[Expr, Expr]:
    """s with numbers, so that equal ones are shared, and q with a name for that s and the side's own constants."""
    own = {c: Symbol(f"{c.name}_{index}", real=True) for c in candidate.form.constants}
    s = candidate.variable.expression
    return s, candidate.form.expression.xreplace({S: Symbol(f"s[{s}]", real=True), **own})


_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Printer(StrPrinter):
    """sympy's own text, with the grammar's names for the heads that sympy does not know."""

    def _print_maximum(self, expression: Expr) -> str:
        return f"max({', '.join(map(self._print, expression.args))})"

    def _print_minimum(self, expression: Expr) -> str:
        return f"min({', '.join(map(self._print, expression.args))})"

    def _print_Abs(self, expression: Expr) -> str:
        return f"abs({self._print(expression.args[0])})"


def spell(expression: Expr) -> str:
    """Text that `read` makes the same expression of."""
    return str(_Printer().doprint(expression))


def read(text: str, constants: Mapping[str, Any]) -> Expr:
    """The expression in y, s and the named constants, which stay symbols.

    Raises `InputError` for text outside the grammar and constants that are badly named.
    """
    for name in constants:
        if not _WORD.fullmatch(name):
            raise InputError(f"a constant's name must be letters, digits and underscores, got {name!r}")
    return parse_formula(text, (Y, S, *(Symbol(name, real=True) for name in constants)))
