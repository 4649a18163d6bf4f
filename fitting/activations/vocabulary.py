"""The names of the grammar: functions, constants, and what the parser says of everything else."""

import ast
import math
from collections.abc import Callable, Mapping
from typing import Any

import sympy
from sympy import Expr, Integer, Piecewise

from actfit.fitting.activations.functions import STABLE_FUNCTIONS, maximum, minimum

MAX_CASES = 64  # of the Piecewise terms in one comparison, multiplied


def _maximum(a: Expr, b: Expr) -> Expr:
    return Piecewise((a, unfold(a > b)), (b, True))


def _minimum(a: Expr, b: Expr) -> Expr:
    return Piecewise((a, unfold(a < b)), (b, True))


def _relu(a: Expr) -> Expr:
    return Piecewise((a, unfold(a > 0)), (Integer(0), True))


def _sign(a: Expr) -> Expr:
    return Piecewise((Integer(1), unfold(a > 0)), (Integer(-1), unfold(a < 0)), (Integer(0), True))


def _absolute(a: Expr) -> Expr:
    # sympy differentiates Abs only of a real argument, and does not take log(x) for one.
    return sympy.Abs(a) if a.is_extended_real else Piecewise((a, unfold(a > 0)), (-a, True))


def _where(condition: Any, a: Expr, b: Expr) -> Expr:
    return Piecewise((a, condition), (b, True))


class TooManyCases(Exception):
    """Conditions on conditions whose cases multiply beyond MAX_CASES."""


def unfold(relation: Any) -> Any:
    """A relation of Piecewise terms as and/or of plain relations; sympy would also solve these, for minutes."""
    pieces = relation.atoms(Piecewise)
    if math.prod(len(piece.args) for piece in pieces) > MAX_CASES:
        raise TooManyCases
    if not pieces:
        return relation
    inner = min(pieces, key=lambda piece: (len(piece.atoms(Piecewise)), sympy.default_sort_key(piece)))
    cases, earlier = [], sympy.true
    for value, condition in inner.args:
        cases.append(sympy.And(earlier, condition, unfold(relation.xreplace({inner: value}))))
        earlier = sympy.And(earlier, sympy.Not(condition))
    return sympy.Or(*cases)


Functions = Mapping[str, tuple[int, Callable[..., Any]]]
FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    **{name: (1, function) for name, function in STABLE_FUNCTIONS.items()},
    **{
        name: (1, getattr(sympy, name))
        for name in ("exp", "log", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "atan", "erf", "erfc")
    },
    "abs": (1, _absolute),
    "Abs": (1, _absolute),
    "sign": (1, _sign),
    "relu": (1, _relu),
    "max": (2, _maximum),
    "min": (2, _minimum),
    "where": (3, _where),
}
OF_FORMULAS = {"max": (2, maximum), "min": (2, minimum), "abs": (1, sympy.Abs), "Abs": (1, sympy.Abs)}
CONSTANTS = {"pi": sympy.pi, "E": sympy.E}
RESERVED = {"x", "Piecewise", *FUNCTIONS, *CONSTANTS}

# For errors: the names of refused operators, calls that are not NAME(x), and reasons for other refused nodes.
OPERATORS = {
    ast.Mod: "%",
    ast.FloorDiv: "//",
    ast.MatMult: "@",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.BitAnd: "& outside of a condition",
    ast.BitOr: "| outside of a condition",
    ast.BitXor: "^ (write ** for powers)",
}
# Names that other languages have, and what to write here.
ELSEWHERE = {
    **dict.fromkeys(("floor", "ceil", "round", "trunc", "int"), "steps are written by where(condition, a, b)"),
    **dict.fromkeys(("pow", "power", "square"), "powers are written by **"),
    **dict.fromkeys(("piecewise", "select"), "write Piecewise((a, condition), ..., (b, True))"),
    **{"ln": "write log(x)", "arctan": "write atan(x)", "gelu": "write x*Phi(x)", "silu": "write x*sigmoid(x)"},
}
CALLS = {
    "where": "where(condition, a, b)",
    "Piecewise": "Piecewise((a, condition), ..., (b, True))",
    "max": "max(a, b)",
    "min": "min(a, b)",
}
NOT_NUMBERS: dict[type[ast.AST], str] = {
    ast.BoolOp: "'and' and 'or' must stand in a condition: use where(condition, a, b),",
    ast.Compare: "a comparison must stand in a condition: use where(condition, a, b),",
    ast.IfExp: "'if' is not allowed: use where(condition, a, b),",
    ast.Attribute: "a dot after a name is not allowed",
    ast.Subscript: "[ ] is not allowed",
    ast.JoinedStr: "text is not allowed",
}
