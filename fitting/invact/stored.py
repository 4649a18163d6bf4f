"""Formulas of stored branches as candidates again, so that their price and bound can be computed anew."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from sympy import Expr, Rational, Symbol

from fitting.invact.candidate import Candidate
from fitting.invact.form import Form, Y, constant
from fitting.invact.text import read
from fitting.invact.variable import Variable


@dataclass(frozen=True)
class StoredVariable:
    """s as a file spells it, without its sign: what price and bound ask of a `Variable`."""

    unsigned: Expr
    constants: dict[str, float]
    negative: bool

    @property
    def symbolic(self) -> Expr:
        """s as an expression of y and its constants' symbols."""
        return -self.unsigned if self.negative else self.unsigned

    @cached_property
    def expression(self) -> Expr:
        """s as an expression of y."""
        return self.symbolic.xreplace({Symbol(key, real=True): Rational(one) for key, one in self.constants.items()})


def candidate_of(branch: dict[str, Any]) -> Candidate:
    """The candidate that a stored branch spells. Raises `InputError` for text outside the grammar."""
    constants = {name: float(value) for name, value in branch["constants"].items()}
    s = Y if branch["variable"] is None else read(branch["variable"], constants)
    own = [name for name in constants if Symbol(name, real=True) not in s.free_symbols]
    # In the order of the file: which number a constant has matters, and not its name.
    numbered = {Symbol(name, real=True): constant(i) for i, name in enumerate(own)}
    expression = read(branch["expression"], constants).xreplace(numbered)
    negative = bool(s.is_Mul and s.args[0] == -1)
    shared = {name: value for name, value in constants.items() if name not in own}
    variable = StoredVariable(-s if negative else s, shared, negative)
    form = Form(expression, tuple(constants[name] for name in own), branch["engine"])
    return Candidate(form, cast(Variable, variable))
