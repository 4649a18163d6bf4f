"""One function of an emitted module: its statements, written from expressions, and its text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count

import sympy
from sympy import Expr, Float, Mul, Pow, Symbol

from actfit.codegen.piecewise import PRINTERS
from actfit.fitting.errors import InputError


@dataclass(frozen=True)
class Function:
    """Name, arguments, one line of documentation, body, and the primitives that the body calls."""

    name: str
    arguments: tuple[str, ...]
    doc: str
    body: tuple[str, ...]
    calls: frozenset[str] = frozenset()
    jit: bool = True

    def without(self, argument: str) -> "Function":
        """The same without an argument, which the body does not use."""
        return replace(self, arguments=tuple(other for other in self.arguments if other != argument))

    def text(self) -> str:
        """Its definition, without a newline at the end."""
        head = ["@triton.jit"] if self.jit else []
        head += [f"def {self.name}({', '.join(self.arguments)}):", f'    """{self.doc}"""']
        return "\n".join([*head, *(f"    {line}".rstrip() for line in self.body)])


@dataclass
class Writer:
    """Collects statements; `constants` are named numbers, `params` the function's parameters in their order.

    With `calls_polynomials`, which is for PyTorch, polynomials are calls of the primitive, not written step by step.
    """

    target: str
    constants: Mapping[Symbol, float] = field(default_factory=dict)
    params: tuple[Symbol, ...] = ()
    lines: list[str] = field(default_factory=list)
    calls_polynomials: bool = False

    def __post_init__(self) -> None:
        self.printer = PRINTERS[self.target](frozenset({*self.params, *self.constants}))
        self.taken = {symbol.name for symbol in (*self.params, *self.constants)} | {"x", "y", "s", "params"}

    def assign(self, name: str, expression: Expr) -> None:
        """name = expression."""
        self.lines.append(f"{name} = {self._prepared(expression)}")

    def give(self, *results: Expr) -> None:
        """return the expressions; what they share is computed once."""
        self.lines.append("return " + ", ".join(self._prepared(result) for result in self._shared(list(results))))

    def _shared(self, expressions: list[Expr]) -> list[Expr]:
        """The expressions with common parts replaced by names."""
        expressions = [numbers(expression) for expression in expressions]
        names = (Symbol(self.free(f"t{i}"), real=True) for i in range(1000))
        parts, rest = sympy.cse(expressions, symbols=names, order="canonical", list=True)
        cheap: dict[Expr, Expr] = {}  # multiples of a name: given names of their own they may overflow, and read worse
        for symbol, part in parts:
            whole = part.xreplace(cheap)
            if whole.is_Mul and all(factor.is_number or factor.is_Symbol for factor in whole.args):
                cheap[symbol] = whole
                continue
            self.taken.add(symbol.name)
            self.lines.append(f"{symbol.name} = {self._prepared(whole)}")
        return [expression.xreplace(cheap) for expression in rest]

    def _prepared(self, expression: Expr) -> str:
        return self.printer._print(self._unchained(numbers(expression)))

    def _unchained(self, expression: Expr) -> Expr:
        """The expression with nested polynomials replaced by names, whose steps are written first."""
        chain = self._chain(expression)
        if chain is not None and len(chain[1]) > 2:
            return self._polynomial(*chain)
        if expression.is_Atom:
            return expression
        if expression.is_Pow and expression.args[1].is_Integer and expression.args[1] < -1:
            # 1/u before its square: 1/u² may be a subnormal number where u² overflows.
            name = self.free("r")
            self.assign(name, 1 / expression.args[0])
            return Symbol(name, real=True) ** -expression.args[1]
        is_product = expression.is_Pow and expression.args[1].is_Integer and expression.args[1] > 1
        if is_product and any(not power.args[0].is_Symbol for power in expression.args[0].atoms(Pow)):
            # Its base is written several times; that of a power of a power of a power would double at each.
            base, name = self._prepared(expression.args[0]), self.free("r")
            self.lines.append(f"{name} = {base}")
            return Symbol(name, real=True) ** expression.args[1]
        return expression.func(*(self._unchained(argument) for argument in expression.args))

    def _chain(self, expression: Expr) -> tuple[Expr, list[Expr]] | None:
        """(v, [c0, c1, ...]) of c0 + v*(c1 + v*(...)), with constants c and any v."""
        if not expression.is_Add or len(expression.args) != 2:
            return None
        for lowest, product in (expression.args, expression.args[::-1]):
            if not self._constant(lowest) or not product.is_Mul or len(product.args) != 2:
                continue
            for variable, rest in (product.args, product.args[::-1]):
                if self._constant(variable):
                    continue
                if self._constant(rest):
                    return variable, [lowest, rest]
                inner = self._chain(rest)
                if inner is not None and inner[0] == variable:
                    return variable, [lowest, *inner[1]]
        return None

    def _constant(self, expression: Expr) -> bool:
        return bool(expression.is_number or expression in self.constants)

    def _polynomial(self, variable: Expr, coefficients: list[Expr]) -> Symbol:
        if not variable.is_Symbol:
            name = self.free("u")
            self.assign(name, variable)
            variable = Symbol(name, real=True)
        name = self.free(next(letter for letter in "pqrvwz" if letter not in self.taken))
        *rest, last = (self.printer._print(coefficient) for coefficient in coefficients)
        if self.calls_polynomials:
            self.printer.used.add("polynomial")
            self.lines.append(f"{name} = polynomial({', '.join([variable.name, last, *reversed(rest)])})")
            return Symbol(name, real=True)
        for constant in reversed(rest):
            form = self.printer.fused if last != name else self.printer.fused_in_place
            self.lines.append(f"{name} = {form.format(a=last, b=variable.name, c=constant)}")
            last = name
        return Symbol(name, real=True)

    def free(self, name: str) -> str:
        """The name, or one like it that is not taken yet; marks it as taken."""
        candidates = (f"{name}_{i}" if i > 1 else name for i in count(1))
        free = next(candidate for candidate in candidates if candidate not in self.taken)
        self.taken.add(free)
        return free

    def function(self, name: str, arguments: tuple[str, ...], doc: str) -> Function:
        """The statements so far as a function; parameters and constants come first."""
        used = " ".join(self.lines)
        words = set(re.findall(r"\w+", used))
        head = [f"{symbol.name} = params[{i}]" for i, symbol in enumerate(self.params) if symbol.name in words]
        head += [f"{symbol.name} = {value!r}" for symbol, value in self.constants.items() if symbol.name in words]
        calls = frozenset(self.printer.used)
        return Function(name, arguments, doc, (*head, *self.lines), calls, jit=self.target == "triton")


def numbers(expression: Expr) -> Expr:
    """The expression with each constant part, unless it is a fraction, as one number: sqrt(2/pi) is 0.79..."""
    if expression.is_Atom:
        return _number(expression) if expression.is_NumberSymbol else expression
    if expression.is_number and not expression.is_Rational:
        return _number(expression)
    if expression.is_Mul:
        constant, rest = expression.as_independent(*expression.free_symbols, as_Add=False)
        if constant not in (1, -1) and not constant.is_Rational:
            return Mul(_number(constant), numbers(rest))
    return expression.func(*(numbers(argument) for argument in expression.args))


def _number(constant: Expr) -> Expr:
    try:
        return Float(constant.evalf(30), 30)
    except ValueError:  # a part of it is too small for sympy to add
        raise InputError(
            f"a formula's constants must be numbers of ordinary sizes, got {constant}; leave out what is almost 0, as"
            " phi(1e308) is"
        ) from None


def quotable(text: str) -> str:
    """The text as it may stand in a docstring."""
    return ascii(text)[1:-1].replace("\\'", "'").replace('"', '\\"')
