"""What follows from the range of y before a formula is computed: which conditions hold, and which roots are real."""

import math

import sympy
from sympy import Expr, Rational, Symbol
from sympy.core.relational import GreaterThan, LessThan, StrictGreaterThan, StrictLessThan

from actfit.fitting.activations.functions import maximum, minimum
from actfit.fitting.invact.variable import Y

_LESS, _GREATER = (LessThan, StrictLessThan), (GreaterThan, StrictGreaterThan)

Span = tuple[Expr, Expr]


def inside(expression: Expr, lo: float, hi: float, rounding: float = 0.0) -> Expr:
    """`expression` without the conditions that hold, or fail, for all y of the open interval (lo, hi), or for lo = hi.

    A number that a condition compares with stands for an end of the interval if it lies within `rounding`, relative,
    of that end.
    """
    known = {}
    for relation in expression.atoms(*_LESS, *_GREATER):
        if relation.lhs == Y and relation.rhs.is_Rational:
            border, less = float(relation.rhs), isinstance(relation, _LESS)
            border = next((end for end in (lo, hi) if abs(border - end) <= rounding * abs(end) < math.inf), border)
            if lo == hi == border:
                known[relation] = isinstance(relation, LessThan | GreaterThan)
            elif border >= hi or border <= lo:
                known[relation] = less == (border >= hi)
    return expression.xreplace({relation: sympy.true if holds else sympy.false for relation, holds in known.items()})


def around(lo: float, hi: float) -> Span:
    """Rational numbers just outside of (lo, hi): the float64 next to the ends; ends of 0 and infinity are exact."""
    lower, upper = (math.nextafter(lo, -math.inf) if lo else lo, math.nextafter(hi, math.inf) if hi else hi)
    return Rational(lower) if math.isfinite(lower) else -sympy.oo, Rational(upper) if math.isfinite(upper) else sympy.oo


def roots_are_real(expression: Expr, known: dict[Symbol, Span]) -> bool:
    """Whether every root in `expression` is surely of a number >= 0, if its symbols lie in the `known` spans."""
    roots = [node for node in expression.atoms(sympy.Pow) if node.exp.is_Rational and not node.exp.is_Integer]
    return all(span(root.base, known)[0] >= 0 for root in roots)


def span(expression: Expr, known: dict[Symbol, Span]) -> Span:
    """Two numbers between which the real values of an expression lie, by exact arithmetic."""
    if expression in known:
        return known[expression]
    if expression.is_Rational:
        return expression, expression
    spans = [span(part, known) for part in expression.args]
    if expression.is_Add:
        return sum(lo for lo, _ in spans), sum(hi for _, hi in spans)
    if isinstance(expression, maximum | minimum):
        largest_or_least = max if isinstance(expression, maximum) else min
        return largest_or_least(lo for lo, _ in spans), largest_or_least(hi for _, hi in spans)
    if expression.is_Mul:
        factor, rest = expression.as_coeff_Mul()
        if factor != 1 and rest != 1:
            ends = [factor * end for end in span(rest, known)]
            return min(ends), max(ends)
        positive = all(lo >= 0 for lo, _ in spans)
    else:
        positive = isinstance(expression, sympy.Abs | sympy.exp) or (
            expression.is_Pow and (expression.exp.is_even or spans[0][0] >= 0)
        )
    return (sympy.Integer(0) if positive else -sympy.oo), sympy.oo
