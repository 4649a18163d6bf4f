"""The variables of formulas: the output y, the variable s in which g is smooth, and constants."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import sympy
from sympy import Expr, Integer, Rational, Symbol

from actfit.fitting.activations.functions import maximum, minimum
from actfit.fitting.activations.tape import Array, Tape

Y = Symbol("y", real=True)
S = Symbol("s", real=True)


def constant(index: int) -> Symbol:
    """The symbol c0, c1, ..."""
    return Symbol(f"c{index}", real=True)


def with_numbers(expression: Expr, constants: Mapping[str, float]) -> Expr:
    """The expression with exact numbers for the constants of these names."""
    return expression.xreplace({Symbol(name, real=True): Rational(value) for name, value in constants.items()})


T, T_LOW, LOW, HIGH, END, RADIUS = (Symbol(name, real=True) for name in ("t", "t_low", "low", "high", "end", "radius"))


@dataclass(frozen=True)
class Variable:
    """The variable s = ±root(min(max(±(y - t), low or 0), high)), or y clipped to low and high if there is no T.

    Near T g is smooth in s = |y - f(T)|**(1/order) and not in y. In files the constants of s have these names: `t`, or
    `t` + `t_low` where one float32 is not enough, is f(T); s stops at `low` and `high`.
    """

    order: int = 1  # the degree of the root
    # anchor, anchor_low: f(T), and the rest of it beyond one float32
    anchor: float | None = None
    anchor_low: float = 0.0
    upward: bool = True  # whether y lies above f(T)
    even: bool = False  # whether s is a function of |y|
    # low, high: where s stops. A positive `low` serves the outputs stored next to f(T), each of which stands for
    # many x.
    low: float | None = None
    high: float | None = None
    negative: bool = False  # whether s < 0: for the left branch where both share one formula
    # the finite limit of y at which f' vanishes again. Then s is tan(θ/2) on the half circle from f(T) to the
    # end, which softens the logarithm that g has there.
    end: float | None = None

    @property
    def constants(self) -> dict[str, float]:
        """The constants of s by name."""
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
        return with_numbers(self.symbolic, self.constants)

    def __call__(self, y: Array) -> Array:
        """s at outputs y (float64, any shape)."""
        return Tape(self.expression, Y).numpy(np.asarray(y, dtype=np.float64))

    def rounded(self) -> "Variable":
        """The variable with its constants as float32, as kernels have them."""

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
