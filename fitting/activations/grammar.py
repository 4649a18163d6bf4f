"""From text to a sympy expression by a small whitelist grammar: nothing is ever evaluated as code.

    expression:  x, parameters, numbers, pi, E, + - * / **, parentheses, FUNCTIONS,
                 where(condition, a, b), Piecewise((a, condition), ..., (b, True))
    condition:   a < b, a <= b, a > b, a >= b, chains of them (-3 < x < 3), and/or, True

Python's own parser makes the syntax tree (`ast.parse`, which runs nothing); every node is then looked
up in the tables below, and what is not in them is refused with its position.
"""

import ast
import math
import operator
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import mpmath
import sympy
from sympy import Expr, Piecewise, Rational, Symbol

from actfit.fitting.activations.balls import Absent, flint
from actfit.fitting.activations.functions import x
from actfit.fitting.activations.tape import Tape
from actfit.fitting.activations.vocabulary import (
    CALLS,
    CONSTANTS,
    ELSEWHERE,
    FUNCTIONS,
    MAX_CASES,
    NOT_NUMBERS,
    OF_FORMULAS,
    OPERATORS,
    RESERVED,
    Functions,
    TooManyCases,
    unfold,
)
from actfit.fitting.errors import InputError, nearest, shortened

MAX_LENGTH = 2000
MAX_DEPTH = 60
SHOWN = 100  # characters of the text in an error
MAX_BITS = 4000  # of a number's numerator or denominator
LARGEST = 1.7976931348623157e308
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")


_BINARY = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
_COMPARE = {ast.Lt: sympy.Lt, ast.LtE: sympy.Le, ast.Gt: sympy.Gt, ast.GtE: sympy.Ge}


def parse(text: str, parameters: Mapping[str, float] | None = None) -> Expr:
    """The sympy expression in `x` that `text` spells, with the value of each of `parameters` put in.

    A number in the text is the exact decimal; a parameter is exactly the float64 it is.
    Raises `InputError` with the position of whatever the grammar does not allow.
    """
    return _Parser(text, parameters or {}, (x,), FUNCTIONS).expression()


def parse_formula(
    text: str,
    variables: Sequence[Symbol],
    parameters: Mapping[str, float] | None = None,
    functions: Functions | None = None,
) -> Expr:
    """The same for a formula in any `variables`; max, min and abs are not rewritten as a Piecewise.

    `functions`: further functions by name: the number of arguments, and what makes an expression of these.
    """
    known = FUNCTIONS | OF_FORMULAS | dict(functions or {})
    return _Parser(text, parameters or {}, variables, known).expression()


def magnitude(constant: Expr) -> float:
    """An upper bound of the absolute value of an expression without x; inf where it is not a real number."""
    if isinstance(flint, Absent):  # then no proof rests on it
        value = mpmath.mpf(Tape(constant).mp(mpmath.mpf(0)))
        return math.inf if mpmath.isnan(value) else math.nextafter(float(abs(value)), math.inf)
    ball = abs(Tape(constant).arb(flint.arb(0)))
    return float(ball.upper()) if ball.is_finite() else math.inf


class _Parser:
    def __init__(
        self, text: str, parameters: Mapping[str, float], variables: Sequence[Symbol], functions: Functions
    ) -> None:
        self.text = text.strip(" ")
        self.variables = tuple(variables)
        self.functions = functions
        self.symbols = {name: Rational(float(value)) for name, value in parameters.items()}
        self.symbols |= {variable.name: variable for variable in variables}
        self.above: list[ast.AST] = []  # the node being read, and the nodes around it

    def expression(self) -> Expr:
        if not self.text:
            example = ", such as x*sigmoid(x)" * (self.variables == (x,))
            raise InputError(f"expression is empty: write one of {' and '.join(map(str, self.variables))}{example}")
        if len(self.text) > MAX_LENGTH:
            raise InputError(f"expression must have at most {MAX_LENGTH} characters, got {len(self.text)}")
        if not self.text.isascii() or not self.text.isprintable():
            raise InputError(f"expression must be one line of plain ASCII, got {shortened(self.text, SHOWN)!r}")
        if "#" in self.text:
            raise InputError(f"expression: no comments, {self.around(self.text.index('#'))}")
        try:
            with warnings.catch_warnings(action="ignore"):  # of Python's, as for "1if": the parser below refuses it
                tree = ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            offset = getattr(error, "offset", 1) or len(self.text) + 1  # Python's 0 is the end
            reason = getattr(error, "msg", None) or "too deeply nested"
            where = self.around(offset - 1)
            raise InputError(f"expression is malformed {where}: {shortened(reason, SHOWN)}") from None
        return self.value(tree)

    def refuse(self, node: ast.AST, why: str, offset: int | None = None) -> InputError:
        """The error for a node; its position is that of its first character, or `offset`."""
        return InputError(
            f"expression: {why} {self.around(getattr(node, 'col_offset', 0) if offset is None else offset)}"
        )

    def around(self, offset: int) -> str:
        """The position, and the text around it, for an error."""
        start = max(0, min(offset - SHOWN // 2, len(self.text) - SHOWN))
        part = self.text[start : start + SHOWN]
        shown = f"{'...' * (start > 0)}{part}{'...' * (start + SHOWN < len(self.text))}"
        return f"at position {offset + 1} of {shown!r}"

    def value(self, node: ast.AST) -> Expr:
        """The number-valued expression at `node`."""
        self.above.append(node)
        if len(self.above) > MAX_DEPTH:
            sums = sum(isinstance(outer, ast.BinOp) and not isinstance(outer.op, ast.Pow) for outer in self.above)
            in_a_row = f"more than {MAX_DEPTH} terms in a row: group them with parentheses,"
            raise self.refuse(node, in_a_row if sums > MAX_DEPTH // 2 else f"nested more than {MAX_DEPTH} deep")
        try:
            result = self._value(node)
        except TooManyCases:
            raise self.refuse(node, f"conditions on conditions of more than {MAX_CASES} cases") from None
        self.above.pop()
        if result.has(sympy.nan, sympy.zoo, sympy.oo, sympy.I):
            raise self.refuse(node, "not a real number")
        for number in result.atoms(Rational):
            if max(abs(number.p), number.q).bit_length() > MAX_BITS or abs(number) > LARGEST:
                raise self.refuse(node, "a number too large or of too many digits")
        # This also keeps sympy from computing sin(exp(exp(20))), to decide a condition, for minutes.
        if not result.has(*self.variables) and magnitude(result) > LARGEST:
            raise self.refuse(node, "not a real number below 1.8e308")
        return result

    def _value(self, node: ast.AST) -> Expr:
        match node:
            case ast.Constant():
                return self.number(node)
            case ast.Name(id=name) if name in self.symbols:
                return self.symbols[name]
            case ast.Name(id=name) if name in CONSTANTS:
                return CONSTANTS[name]
            case ast.Name(id=name):
                if name in self.functions or name == "Piecewise":
                    raise self.refuse(node, f"{name} is a function: write {CALLS.get(name, f'{name}(x)')},")
                known = nearest(name, {*self.symbols, *RESERVED} - ({"x"} - self.symbols.keys()))
                if self.variables == (x,) and (len(name) <= 2 or not known.startswith("did you mean")):
                    known = f"the variable is x; a parameter takes its value by --param {shortened(name, 20)}=1"
                raise self.refuse(node, f"unknown name {shortened(name, SHOWN)!r} ({known})")
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.value(operand)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.value(operand)
            case ast.BinOp(left=left, op=op, right=right):
                return self.binary(node, op, self.value(left), self.value(right))
            case ast.Call():
                return self.call(node)
        raise self.refuse(node, NOT_NUMBERS.get(type(node), f"{type(node).__name__} is not allowed"))

    def number(self, node: ast.Constant) -> Expr:
        literal = self.text[node.col_offset : node.end_col_offset]
        if not _NUMBER.fullmatch(literal) or not abs(float(literal)) < math.inf:
            raise self.refuse(node, f"{literal[:20]!r} is not a plain decimal number below 1.8e308")
        return Rational(literal)

    def binary(self, node: ast.BinOp, op: ast.operator, a: Expr, b: Expr) -> Expr:
        if type(op) in _BINARY:
            return _BINARY[type(op)](a, b)
        if isinstance(op, ast.Div):
            if b.is_zero:
                raise self.refuse(node, "division by zero")
            return a / b
        if isinstance(op, ast.Pow):
            if not b.has(*self.variables) and not self.modest_power(a, b):
                raise self.refuse(node, "a power too large to be meant")
            if b.has(*self.variables) and not a.has(*self.variables) and not Tape(a).arb(flint.arb(0)) > 0:
                raise self.refuse(node, "a number to a power that varies must be positive")
            return a**b
        sign = OPERATORS[type(op)]
        place = self.text.index(sign.split()[0], node.left.end_col_offset or 0)
        raise self.refuse(node, f"operator {sign} is not allowed", place)

    def modest_power(self, base: Expr, exponent: Expr) -> bool:
        """Whether base**exponent stays within float64: sympy would compute 9**9**9**9 exactly."""
        if magnitude(exponent) > 1000:
            return False
        return bool(base.has(*self.variables) or base.is_zero or magnitude(exponent * sympy.log(abs(base))) < 710)

    def call(self, node: ast.Call) -> Expr:
        if isinstance(node.func, ast.Constant) or getattr(node.func, "id", "") in {*self.symbols, *CONSTANTS}:
            raise self.refuse(node, f"{ast.unparse(node.func)} is no function: write * for products,")
        if not isinstance(node.func, ast.Name) or node.keywords:
            name = getattr(node.func, "attr", "")
            plain = f": write {CALLS.get(name, f'{name}(x)')}," if name in self.functions else ""
            raise self.refuse(node, f"only plain calls like exp(x) are allowed{plain}")
        name = node.func.id
        if name == "Piecewise":
            return self.piecewise(node)
        if name not in self.functions:
            known = ELSEWHERE.get(name.lower()) or nearest(name, [*self.functions, "Piecewise"])
            raise self.refuse(node, f"unknown function {shortened(name, SHOWN)!r} ({known})")
        count, function = self.functions[name]
        if len(node.args) != count:
            raise self.refuse(node, f"{name} takes {count} argument{'s'[: count > 1]}, got {len(node.args)}")
        if name == "where":
            return function(self.condition(node.args[0]), self.value(node.args[1]), self.value(node.args[2]))
        return function(*map(self.value, node.args))

    def piecewise(self, node: ast.Call) -> Expr:
        branches = []
        for argument in node.args:
            if not isinstance(argument, ast.Tuple) or len(argument.elts) != 2:
                raise self.refuse(argument, f"Piecewise takes (value, condition) pairs: {CALLS['Piecewise']},")
            branches.append((self.value(argument.elts[0]), self.condition(argument.elts[1])))
        if not branches or branches[-1][1] != sympy.true:
            raise self.refuse(node, f"the last condition of Piecewise must be True: {CALLS['Piecewise']},")
        return Piecewise(*branches)

    def condition(self, node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=True):
                return sympy.true
            case ast.BoolOp(op=op, values=values):
                combine = sympy.And if isinstance(op, ast.And) else sympy.Or
                return combine(*map(self.condition, values))
            case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
                return sympy.And(self.condition(left), self.condition(right))
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return sympy.Or(self.condition(left), self.condition(right))
            case ast.Compare(left=left, ops=ops, comparators=comparators) if all(type(op) in _COMPARE for op in ops):
                values = [self.value(left), *map(self.value, comparators)]
                pairs = zip(ops, values, values[1:], strict=False)
                return sympy.And(*(unfold(_COMPARE[type(op)](a, b)) for op, a, b in pairs))
        raise self.refuse(node, "a condition must compare with <, <=, > or >=")
