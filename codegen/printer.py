"""Expressions as text for Triton, and what PyTorch shares: sympy's CodePrinter with an allow-list of functions.

Other functions are refused by name. Sums of products are printed as fused multiply-adds, so no result depends on what
a compiler contracts.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import sympy
from sympy import Expr, Float, Mul, Rational, Symbol
from sympy.printing.codeprinter import CodePrinter
from sympy.printing.precedence import PRECEDENCE

from actfit.codegen.primitives import TRITON
from actfit.fitting.errors import InputError

_RELATIONS = {"StrictLessThan": "<", "LessThan": "<=", "StrictGreaterThan": ">", "GreaterThan": ">="}


class ElementwisePrinter(CodePrinter):
    """What both targets share. `used` collects the primitives called; `scalars` are symbols that are not tensors."""

    printmethod = "_elementwise"
    language = "Triton"
    functions: ClassVar[dict[str, str]]  # sympy's name -> the target's name
    select: str
    fused: str  # of {a}, {b} and {c}
    fused_in_place: str  # likewise, where {a} may be overwritten

    def __init__(self, scalars: frozenset[Symbol] = frozenset()) -> None:
        super().__init__()
        self.scalars = scalars
        self.used: set[str] = set()

    def _print(self, expr: Any, **kwargs: Any) -> str:
        name = type(expr).__name__  # Symbol, Mul, sigmoid, ...
        method: Callable[..., str] | None = getattr(self, f"_write_{name}", None)
        if method is None and isinstance(expr, Rational | Float | sympy.NumberSymbol):
            return repr(float(expr))
        if method is None and name in self.functions:
            self.used.add(name)
            return f"{self.functions[name]}({', '.join(self._print(argument) for argument in expr.args)})"
        if method is None and name in _RELATIONS:
            left, right = (self.parenthesize(operand, PRECEDENCE["BitwiseOr"]) for operand in expr.args)
            return f"({left} {_RELATIONS[name]} {right})"
        if method is None:
            raise InputError(f"expression must be made of heads that {self.language} is written in, got {name}: {expr}")
        return method(expr)

    def _write_Symbol(self, expr: Symbol) -> str:
        return str(expr.name)

    _write_Dummy = _write_Symbol

    def _is_scalar(self, expr: Expr) -> bool:
        return bool(expr.free_symbols) and expr.free_symbols <= self.scalars

    def _write_Mul(self, expr: Expr) -> str:
        number, rest = expr.as_coeff_Mul()
        if number == -1:
            return f"-{self.parenthesize(rest, PRECEDENCE['Mul'])}"
        above = [number] if number != 1 else []
        below = []
        for factor in vanishing_first(rest):
            base, exponent = factor.as_base_exp()
            if exponent.is_Integer and exponent.is_negative and not self._is_scalar(factor):
                below.append(base ** (-exponent))
            else:
                above.append(factor)
        text = " * ".join(self._factor(factor) for factor in above) or "1.0"
        if not below:
            return text
        under = self._print(below[0]) if len(below) == 1 else " * ".join(self._factor(factor) for factor in below)
        return f"{text} / {under}" if len(below) == 1 and below[0].is_Symbol else f"{text} / ({under})"

    def _factor(self, factor: Expr) -> str:
        text = self._print(factor)
        plain = factor.is_Add or factor.is_Mul or (factor.is_Pow and " " in text and not text.endswith(")"))
        negative = text.startswith("-") and not factor.is_number
        return f"({text})" if (plain and not self._is_call(text)) or negative or " / " in text else text

    @staticmethod
    def _is_call(text: str) -> bool:
        """Whether the text is one call, name(...), up to its last character."""
        head, parenthesis, rest = text.partition("(")
        if not parenthesis or not head.replace(".", "").isidentifier() or not rest.endswith(")"):
            return False
        depth = 1
        for position, character in enumerate(rest):
            depth += {"(": 1, ")": -1}.get(character, 0)
            if depth == 0:
                return position == len(rest) - 1
        return False

    def _write_Add(self, expr: Expr) -> str:
        """One product after another, each fused with the sum so far."""
        if self._is_scalar(expr):
            return " + ".join(self._factor(term) for term in expr.args)
        if (denominator := common_denominator(expr)) > 1:
            return f"{self._factor(sympy.expand_mul(expr * denominator))} * {1 / denominator!r}"
        return self._total(expr)

    def _total(self, expr: Expr) -> str:
        plain = [term for term in expr.args if not self._product(term)]
        products = [term for term in expr.args if self._product(term)]
        total = self._sum(plain)
        for product in products:
            if total is None:
                total = self._print(product)
                continue
            *others, last = self._ordered(product)
            first = self._print(Mul(*others, evaluate=False) if len(others) > 1 else others[0])
            total = self.fused.format(a=first, b=self._print(last), c=total)
        return str(total)

    @staticmethod
    def _ordered(product: Expr) -> list[Expr]:
        number, rest = product.as_coeff_Mul()
        factors = vanishing_first(rest)
        last = factors[-1]
        if last.is_Pow and last.args[1] == 2:
            factors[-1:] = [last.args[0]] * 2
        if number == 1:
            return factors
        return [number * factors[0], *factors[1:]] if number == -1 and len(factors) > 1 else [number, *factors]

    def _product(self, term: Expr) -> bool:
        """Whether the term is worth a multiply-add: a product, but no change of sign and no quotient."""
        if term.is_Pow:
            return bool(term.args[1] == 2)
        if not term.is_Mul or self._is_scalar(term):
            return False
        number, rest = term.as_coeff_Mul()
        divides = any(
            factor.is_Pow and factor.args[1].is_negative and not self._is_scalar(factor)
            for factor in Mul.make_args(rest)
        )
        return not divides and (number != -1 or rest.is_Mul)

    def _sum(self, terms: list[Expr]) -> str | None:
        if not terms:
            return None
        first, *rest = sorted(terms, key=lambda term: (term.could_extract_minus_sign(), term.is_number))
        text = self._print(first)
        for term in rest:
            text += f" - {self._factor(-term)}" if term.could_extract_minus_sign() else f" + {self._print(term)}"
        return text

    def _write_Pow(self, expr: Expr) -> str:
        base, exponent = expr.args
        if exponent in (Rational(1, 2), Rational(-1, 2)):
            return self._call("sqrt" if exponent.is_positive else "rsqrt", base)
        if base == 2:
            return self._call("exp2", exponent)
        if exponent.is_Integer and exponent.is_negative:
            under = self._print(base ** (-exponent))
            return f"1.0 / {under}" if base.is_Symbol and exponent == -1 else f"1.0 / ({under})"
        if exponent.is_Integer:
            return self._repeated(base, int(exponent))
        if exponent.is_positive and not exponent.free_symbols:
            self.used.add("power")
            return f"{self.functions['power']}({self._print(base)}, {float(exponent)!r})"
        if exponent.is_negative and not exponent.free_symbols:
            return f"1.0 / {self._print(base ** (-exponent))}"
        if not base.free_symbols:
            return self._call("exp2", exponent * sympy.Float(sympy.log(base, 2).evalf(20), 20))
        raise InputError(f"a power must have a constant base or a constant exponent, got {expr}")

    def _repeated(self, base: Expr, exponent: int) -> str:
        """base**exponent as products, by squaring."""
        text = self._factor(base)
        if exponent == 1:
            return text
        half = " * ".join([text] * (exponent // 2)) if exponent <= 5 else self._repeated(base, exponent // 2)
        if exponent <= 4:
            return " * ".join([text] * exponent)
        return f"({half}) * ({half})" + f" * {text}" * (exponent % 2)

    def _call(self, name: str, argument: Expr) -> str:
        return f"{self._builtin(name)}({self._print(argument)})"

    def _builtin(self, name: str) -> str:
        raise NotImplementedError

    def _write_Piecewise(self, expr: Expr) -> str:
        text = self._otherwise(expr)
        for value, condition in reversed(expr.args[:-1]):
            text = f"{self.select}({self._print(condition)}, {self._print(value)}, {text})"
        return text

    def _otherwise(self, expr: Expr) -> str:
        return self._print(expr.args[-1][0])

    def _write_And(self, expr: Expr) -> str:
        sign = " & " if isinstance(expr, sympy.And) else " | "
        return f"({sign.join(map(self._print, sorted(expr.args, key=sympy.default_sort_key)))})"

    _write_Or = _write_And

    def _write_Not(self, expr: Expr) -> str:
        return f"(~{self._print(expr.args[0])})"

    def _write_BooleanTrue(self, expr: Any) -> str:
        raise InputError("a condition must depend on x, got True")

    _write_BooleanFalse = _write_BooleanTrue


def vanishing_first(product: Expr) -> list[Expr]:
    """The factors, functions before names before sums: sigmoid(-x) * x * x² is 0 where x * x² has overflown."""
    return sorted(Mul.make_args(product), key=lambda factor: 0 if factor.is_Function else 1 if factor.is_Symbol else 2)


def common_denominator(total: Expr) -> int:
    """The common denominator of a sum of small fractions: (2*x + 3)/6 is 0 where x*0.33333334 + 0.5 is not."""
    numbers = [term.as_coeff_Mul()[0] for term in total.args]
    if not all(number.is_Rational for number in numbers):
        return 1
    denominator = int(sympy.ilcm(*(number.q for number in numbers), 1))
    return 1 if denominator > 64 or denominator & (denominator - 1) == 0 else denominator


class TritonPrinter(ElementwisePrinter):
    """For the inside of a @triton.jit function, in float32."""

    language = "Triton"
    functions: ClassVar = {**{name: name for name in TRITON}, "Abs": "tl.abs"}
    select = "tl.where"
    fused = fused_in_place = "tl.fma({a}, {b}, {c})"

    def _builtin(self, name: str) -> str:
        return f"tl.{name}"
