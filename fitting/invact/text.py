"""Formulas as text of the grammar, and back."""

import re
from collections.abc import Mapping
from typing import Any

from sympy import Expr, Symbol
from sympy.printing.str import StrPrinter

from fitting.activations.grammar import parse_formula
from fitting.errors import InputError
from fitting.invact.form import S, Y

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
