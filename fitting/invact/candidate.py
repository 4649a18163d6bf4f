"""A candidate: a form in a variable, both with float32 constants; what a pair of them costs."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Rational, Symbol
from sympy.core.relational import Relational

from fitting.activations.tape import Array, Tape
from fitting.invact.form import Form, S, Y, constant
from fitting.invact.formats import Format
from fitting.invact.price import Price, price
from fitting.invact.variable import Variable

SHORT = 64  # numerators and denominators of numbers that a formula shows as they are


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


def _parts(candidate: Candidate, side: int) -> tuple[Expr, Expr]:
    """s with numbers, so that equal ones are shared, and q with a name for that s and the side's own constants."""
    own = {c: Symbol(f"{c.name}_{side}", real=True) for c in candidate.form.constants}
    s = candidate.variable.expression
    return s, candidate.form.expression.xreplace({S: Symbol(f"s[{s}]", real=True), **own})


def closed(expression: Expr, form: Format) -> Candidate:
    """A closed form in y as a candidate; numbers that are not short become constants, nearest in float64.

    What y is compared with is rounded as y was: a y stored at the border of a case belongs to the case of that border.
    """
    values: list[float] = []

    def lifted(node: Expr) -> Expr:
        if isinstance(node, Relational):
            sides = (Rational(float(form.round(np.array(float(a))))) if a.is_number else a for a in node.args)
            return node.func(*(lifted(side) for side in sides))
        if node.is_number:
            if node.is_Rational and max(abs(node.p), node.q) <= SHORT:
                return node
            values.append(float(node))
            return constant(len(values) - 1)
        if node.is_Mul:
            numbers = [factor for factor in node.args if factor.is_number]
            others = [lifted(factor) for factor in node.args if not factor.is_number]
            return type(node)(*([lifted(type(node)(*numbers))] if numbers else []), *others)
        if node.is_Pow:
            return lifted(node.args[0]) ** node.args[1]
        if not node.args:
            return node
        return node.func(*(lifted(argument) for argument in node.args))

    return Candidate(Form(lifted(expression), tuple(values), "closed"), Variable())
