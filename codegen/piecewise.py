"""Piecewise definitions of functions that users write, as sympy functions, and their text for both targets.

Sympy rewrites a Piecewise: it solves the conditions, which may take minutes or change their numbers. It leaves these
functions alone, so the branch at a kink, and at NaN, is the one that was written: a comparison with NaN is false, and
`select` then takes its second value.
"""

from typing import Any, ClassVar

import sympy
from sympy import Expr, Function, Integer, Piecewise
from sympy.printing.precedence import PRECEDENCE

from actfit.codegen.printer import ElementwisePrinter, TritonPrinter
from actfit.codegen.torch_printer import TorchPrinter
from actfit.fitting.activations.functions import x
from actfit.fitting.errors import InputError


class Condition(Function):
    """A condition on an element; its derivative is 0."""

    sign: ClassVar[str]

    def _eval_derivative(self, symbol: Expr) -> Expr:
        return Integer(0)

    def _sympystr(self, printer: Any) -> str:
        return f"({f' {self.sign} '.join(map(printer._print, self.args))})"


class below(Condition):
    """a < b."""

    nargs, sign = 2, "<"


class at_most(Condition):
    """a <= b."""

    nargs, sign = 2, "<="


class both(Condition):
    """Both conditions hold."""

    nargs, sign = 2, "&"


class either(Condition):
    """At least one of two conditions holds."""

    nargs, sign = 2, "|"


class opposite(Condition):
    """The condition does not hold; true at NaN, where a comparison is false."""

    nargs = 1

    def _sympystr(self, printer: Any) -> str:
        return f"~{printer._print(self.args[0])}"


class select(Function):
    """The second argument where the first, a condition, holds, and the third elsewhere."""

    nargs = 3

    @classmethod
    def eval(cls, condition: Expr, a: Expr, b: Expr) -> Expr | None:
        return a if a == b else None

    def _eval_is_extended_real(self) -> bool:
        return True

    def _eval_derivative(self, symbol: Expr) -> Expr:
        condition, a, b = self.args
        return select(condition, a.diff(symbol), b.diff(symbol))

    def _sympystr(self, printer: Any) -> str:
        return f"where({', '.join(map(printer._print, self.args))})"


class unless_nan(Function):
    """The second argument, but x (the first) where x is NaN: no branch may hide it."""

    nargs = 2

    def _eval_derivative(self, symbol: Expr) -> Expr:
        return self.args[1].diff(symbol)

    def _sympystr(self, printer: Any) -> str:
        return str(printer._print(self.args[1]))


class quotient(Function):
    """The first argument over the second, differentiated as in torch's backward: sympy's derivative divides by the
    square of the second, which may overflow where the quotient does not."""

    nargs = 2

    @classmethod
    def eval(cls, above: Expr, under: Expr) -> Expr | None:
        return above / under if above.is_zero or not under.free_symbols else None

    def _eval_is_extended_real(self) -> bool:
        return True

    def _eval_derivative(self, symbol: Expr) -> Expr:
        above, under = self.args
        return quotient(above.diff(symbol) - self * under.diff(symbol), under)

    def _sympystr(self, printer: Any) -> str:
        above, under = (printer.parenthesize(part, PRECEDENCE["Pow"]) for part in self.args)
        return f"({above}/{under})"


class like(Function):
    """A tensor full of the first argument, a number, like the second."""

    nargs = 2


def compared(condition: type[Condition], a: Expr, b: Expr) -> Condition:
    """The condition of two numbers, one of which depends on x."""
    if not (a.free_symbols or b.free_symbols):
        raise InputError(f"a condition must depend on x, got one of {a} and {b}; leave it out")
    return condition(a, b)


def absolute(u: Expr) -> Expr:
    """|u|, whose derivative at 0 is 0."""
    # sympy differentiates Abs only of what it knows to be real, which log(x) is not.
    if u.is_extended_real:
        return sympy.Abs(u)
    return select(_positive(u), u, select(compared(at_most, Integer(0), u), Integer(0), -u))


def _positive(u: Expr) -> Condition:
    return compared(below, Integer(0), u)


def sign(u: Expr) -> Expr:
    """-1, 0 or 1."""
    return select(_positive(u), Integer(1), select(compared(below, u, Integer(0)), Integer(-1), Integer(0)))


def halved(a: Expr, b: Expr, first: Condition, second: Condition) -> Expr:
    """a where `first` holds, b where `second` does; elsewhere both are equal, and each has half the gradient."""
    return select(first, a, select(second, b, a / 2 + b / 2))


_RELATIONS = {sympy.Lt: (below, False), sympy.Le: (at_most, False), sympy.Gt: (below, True), sympy.Ge: (at_most, True)}


def composed(expression: Expr, u: Expr) -> Expr:
    """An expression of the catalogue at u instead of x: each Piecewise becomes `select`, and is NaN where u is NaN."""
    if expression == x:
        return u
    if isinstance(expression, Piecewise):
        return _selected(expression, u)
    return expression.func(*(composed(part, u) for part in expression.args)) if expression.args else expression


def _selected(piecewise: Piecewise, u: Expr) -> Expr:
    cases = [(case.expr, case.cond) for case in piecewise.args]
    if not cases[-1][0].has(x):  # at NaN all comparisons fail: the last value must depend on u
        others, (last, _) = cases[:-1], cases[-1]
        none = sympy.And(*(sympy.Not(condition) for _, condition in others))
        cases = [(last, none), *others]
    result = composed(cases[-1][0], u)
    for value, condition in reversed(cases[:-1]):
        result = select(_condition(condition, u), composed(value, u), result)
    return result


def _condition(condition: Any, u: Expr) -> Expr:
    if isinstance(condition, sympy.And | sympy.Or):
        first, *others = (_condition(part, u) for part in sorted(condition.args, key=sympy.default_sort_key))
        for other in others:
            first = both(first, other) if isinstance(condition, sympy.And) else either(first, other)
        return first
    kind, turned = _RELATIONS[type(condition)]
    a, b = (composed(operand, u) for operand in condition.args)
    return compared(kind, b, a) if turned else compared(kind, a, b)


class PiecewisePrinter(ElementwisePrinter):
    """The text of these functions."""

    _turned: ClassVar = {"<": ">", "<=": ">="}

    def _write_below(self, expr: Condition) -> str:
        a, b = expr.args
        sign, operands = (self._turned[expr.sign], (b, a)) if a.is_number else (expr.sign, (a, b))
        left, right = (self.parenthesize(operand, PRECEDENCE["BitwiseOr"]) for operand in operands)
        return f"({left} {sign} {right})"

    _write_at_most = _write_below

    def _write_both(self, expr: Condition) -> str:
        return f"({f' {expr.sign} '.join(map(self._print, expr.args))})"

    _write_either = _write_both

    def _write_opposite(self, expr: Condition) -> str:
        return f"(~{self._print(expr.args[0])})"

    def _write_select(self, expr: select) -> str:
        return f"{self.select}({', '.join(map(self._print, expr.args))})"

    def _write_quotient(self, expr: quotient) -> str:
        above, under = map(self._factor, expr.args)
        return f"{above} / {under}"

    def _write_unless_nan(self, expr: unless_nan) -> str:
        name, value = map(self._print, expr.args)
        return f"{self.select}({name} != {name}, {name}, {value})"


class TritonPiecewisePrinter(PiecewisePrinter, TritonPrinter):
    """For Triton."""


class TorchPiecewisePrinter(PiecewisePrinter, TorchPrinter):
    """For PyTorch."""

    def _write_select(self, expr: select) -> str:
        """Of two numbers torch.where makes float32, whatever the dtype of x: the last becomes a tensor like x."""
        condition, a, b = expr.args
        last = b if a.free_symbols or b.free_symbols else like(b, x)
        return f"torch.where({', '.join(map(self._print, (condition, a, last)))})"

    def _write_like(self, expr: like) -> str:
        number, name = map(self._print, expr.args)
        return f"torch.full_like({name}, {number})"


PRINTERS: dict[str, type[PiecewisePrinter]] = {"triton": TritonPiecewisePrinter, "torch": TorchPiecewisePrinter}
