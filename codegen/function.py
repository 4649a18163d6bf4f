"""One function of an emitted module: the statements that an expression becomes, and its text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import sympy
from sympy import Expr, Float, Mul, Symbol

from codegen.choices import PRINTERS
from fitting.errors import InputError


@dataclass(frozen=True)
class Function:
    """Its name and arguments, one line on what it is, its body, and the primitives that this calls."""

    name: str
    arguments: tuple[str, ...]
    doc: str
    body: tuple[str, ...]
    calls: frozenset[str] = frozenset()
    jit: bool = True

    def without(self, argument: str) -> "Function":
        """The same without an argument, which the body does not use."""
        return replace(self, arguments=tuple(one for one in self.arguments if one != argument))

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
        """return the one expression, or several with what they share computed once."""
        self.lines.append("return " + ", ".join(self._prepared(result) for result in self._shared(list(results))))

    def _shared(self, expressions: list[Expr]) -> list[Expr]:
        """The expressions with common parts replaced by names."""
        expressions = [numbers(one) for one in expressions]
        names = (Symbol(self.free(f"t{i}"), real=True) for i in range(1000))
        parts, rest = sympy.cse(expressions, symbols=names, order="canonical", list=True)
        cheap: dict[Expr, Expr] = {}  # a multiple of a name: as a part of its own it may overflow, and reads worse
        for symbol, part in parts:
            whole = part.xreplace(cheap)
            if whole.is_Mul and all(factor.is_number or factor.is_Symbol for factor in whole.args):
                cheap[symbol] = whole
                continue
            self.taken.add(symbol.name)
            self.lines.append(f"{symbol.name} = {self._prepared(whole)}")
        return [one.xreplace(cheap) for one in rest]

    def _prepared(self, expression: Expr) -> str:
        return self.printer._print(self._unchained(numbers(expression)))

    def _unchained(self, expression: Expr) -> Expr:
        """The expression with nested polynomials replaced by names, whose steps are written first."""
        found = self._chain(expression)
        if found is not None and len(found[1]) > 2:
            return self._polynomial(*found)
        if expression.is_Atom:
            return expression
        if expression.is_Pow and expression.args[1].is_Integer and expression.args[1] < -1:
            # The reciprocal first: its square may be subnormal where that of what it divides is infinite.
            name = self.free("r")
            self.assign(name, 1 / expression.args[0])
            return Symbol(name, real=True) ** -expression.args[1]
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
        name = self.free(next(one for one in "pqrvwz" if one not in self.taken))
        *rest, last = (self.printer._print(one) for one in coefficients)
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
        """The name, or one like it that is not taken; it is, from now on."""
        free = next(one for one in (name, *(f"{name}_{i}" for i in range(2, 99))) if one not in self.taken)
        self.taken.add(free)
        return free

    def function(self, name: str, arguments: tuple[str, ...], doc: str) -> Function:
        """What has been written, as a function: parameters and constants first."""
        used = " ".join(self.lines)
        words = set(re.findall(r"\w+", used))
        head = [f"{symbol.name} = params[{i}]" for i, symbol in enumerate(self.params) if symbol.name in words]
        head += [f"{symbol.name} = {value!r}" for symbol, value in self.constants.items() if symbol.name in words]
        calls = frozenset(self.printer.used)
        return Function(name, arguments, doc, (*head, *self.lines), calls, jit=self.target == "triton")


def numbers(expression: Expr) -> Expr:
    """The expression with each constant part that is no fraction as one number: sqrt(2/pi) is 0.79..."""
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
