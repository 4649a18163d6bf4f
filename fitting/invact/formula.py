"""A formula q(y) for g(y) = f'(f⁻¹(y)): a form in y and s, and a candidate, which is a form with its variable s."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Abs, Expr, Function, Symbol, sign
from sympy.printing.str import StrPrinter

from actfit.fitting.activations.grammar import parse_formula
from actfit.fitting.activations.tape import Array, Tape
from actfit.fitting.errors import InputError
from actfit.fitting.invact.price import Price, price
from actfit.fitting.invact.variable import S, Variable, Y, constant, with_numbers


@dataclass(frozen=True)
class Form:
    """A formula for g that an engine proposes: an expression in y, s and named constants."""

    expression: Expr  # in `Y`, `S` and constant(0), constant(1), ...
    values: tuple[float, ...]  # of the constants
    engine: str  # the name of the engine

    @property
    def constants(self) -> tuple[Symbol, ...]:
        """The symbols of the constants."""
        return tuple(constant(i) for i in range(len(self.values)))


class _RealAbs(Function):
    """|u| of a real u. Sympy's own derivative of Abs has atan2 where it does not see that u is real, as of roots."""

    def fdiff(self, argindex: int = 1) -> Expr:
        return sign(self.args[0])


def derivative_by(expression: Expr, symbol: Symbol) -> Expr:
    """The derivative of an expression whose parts are all real."""
    return expression.replace(Abs, _RealAbs).diff(symbol).replace(_RealAbs, Abs)


def evaluate(form: Form, y: Array, s: Array) -> Array:
    """The formula in float64 with its constants as they are; y and s broadcast."""
    return Tape(form.expression, Y, S, *form.constants).numpy(y, s, *form.values)


@dataclass(frozen=True)
class Candidate:
    """A formula q(y) = form(y, s) with s = variable(y) that can be evaluated and priced."""

    form: Form  # q in y and s. Its constants are float32 numbers, but for closed forms as they are and the paper's.
    variable: Variable  # s in y

    def __call__(self, y: Array) -> Array:
        """q at outputs y (float64, any shape), in float64."""
        y = np.asarray(y, dtype=np.float64)
        return self.tapes[1].numpy(y, self.tapes[0].numpy(y))

    def float32(self, y: Array) -> NDArray[np.float32]:
        """q as kernels compute it: in float32, at outputs y (any shape) that are float32 numbers."""
        return self.tapes[1].numpy32(y, self.tapes[0].numpy32(y))

    def rounded(self) -> "Candidate":
        """The candidate with every constant rounded to float32."""
        values = tuple(float(np.float32(value)) for value in self.form.values)
        return Candidate(replace(self.form, values=values), self.variable.rounded())

    @property
    def constants(self) -> dict[str, float]:
        """The constants of s by name, then those of the form."""
        of_variable = {} if self.variable.symbolic == Y else self.variable.constants
        names = (symbol.name for symbol in self.form.constants)
        return {**of_variable, **dict(zip(names, self.form.values, strict=True))}

    @cached_property
    def price(self) -> Price:
        """The price of this formula alone."""
        return price(self.variable.symbolic, self.form.expression)

    @cached_property
    def tapes(self) -> tuple[Tape, Tape]:
        """The tapes of s in y, and of q in y and s, with numbers for constants."""
        names = (symbol.name for symbol in self.form.constants)
        q = with_numbers(self.form.expression, dict(zip(names, self.form.values, strict=True)))
        return Tape(self.variable.expression, Y), Tape(q, Y, S)


def pair_price(left: Candidate, right: Candidate) -> Price:
    """The price of both formulas and of the selection by the branch bit.

    If they differ in constants only, one evaluation serves both, and the bit selects each constant that differs;
    otherwise both are evaluated, and share common parts.
    """
    plain = replace(left.variable, negative=False), replace(right.variable, negative=False)
    separate = _selected(price(*_parts(left, 0), *_parts(right, 1)), 1)
    if left.form.expression != right.form.expression or plain[0].symbolic != plain[1].symbolic:
        return separate
    pairs = [*zip(left.form.values, right.form.values, strict=True)]
    pairs += [(plain[0].constants[key], plain[1].constants[key]) for key in plain[0].constants]
    pairs += [(float(left.variable.negative), float(right.variable.negative))]
    shared = _selected(Candidate(right.form, plain[1]).price, sum(a != b for a, b in pairs))
    return min(separate, shared, key=lambda price: price.total)


def _selected(price: Price, selections: int) -> Price:
    return replace(price, other=price.other + selections)


def _parts(candidate: Candidate, index: int) -> tuple[Expr, Expr]:
    """s with numbers, so that equal ones are shared, and q with names for that s and the branch's own constants."""
    renamed = {c: Symbol(f"{c.name}_{index}", real=True) for c in candidate.form.constants}
    s = candidate.variable.expression
    return s, candidate.form.expression.xreplace({S: Symbol(f"s[{s}]", real=True), **renamed})


_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Printer(StrPrinter):
    """sympy's own text, with the grammar's names for the functions that sympy does not know."""

    def _print_maximum(self, expression: Expr) -> str:
        return f"max({', '.join(map(self._print, expression.args))})"

    def _print_minimum(self, expression: Expr) -> str:
        return f"min({', '.join(map(self._print, expression.args))})"

    def _print_Abs(self, expression: Expr) -> str:
        return f"abs({self._print(expression.args[0])})"


def spell(expression: Expr) -> str:
    """The expression as text, which `read` turns into the same expression."""
    return str(_Printer().doprint(expression))


def read(text: str, constants: Mapping[str, Any]) -> Expr:
    """The expression of a text in y, s and the named constants, which stay symbols.

    Raises `InputError` for text outside the grammar, and for a bad name of a constant.
    """
    for name in constants:
        if not _WORD.fullmatch(name):
            raise InputError(f"a constant's name must be letters, digits and underscores, got {name!r}")
    return parse_formula(text, (Y, S, *(Symbol(name, real=True) for name in constants)))
