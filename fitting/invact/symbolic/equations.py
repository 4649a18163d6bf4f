"""Formulas with numbers as forms with constants, and PySR's hall_of_fame.csv as such forms.

PySR's own reader runs equations as code; here they are parsed, and PySR is not needed.
"""

import csv
import io
import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import sympy
from sympy import Abs, Expr, Integer, Rational, Symbol, default_sort_key, exp, sqrt

from actfit.fitting.activations.grammar import LARGEST, magnitude, parse_formula
from actfit.fitting.errors import InputError
from actfit.fitting.invact.formula import Form
from actfit.fitting.invact.variable import S, Y, constant

ENGINE = "pysr"
NAME = "hall_of_fame.csv"
MAX_BYTES = 10_000_000

# PySR's default names of the features, in the order in which `pysr.search` gives them.
_FEATURES = {Symbol("x0", real=True): Y, Symbol("x1", real=True): S}
_FUNCTIONS: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "square": (1, lambda u: u**2),
    "cube": (1, lambda u: u**3),
    "neg": (1, lambda u: -u),
    "inv": (1, lambda u: Integer(1) / u),
    "sqrt_abs": (1, lambda u: sqrt(Abs(u))),
}
_JULIA_FLOAT = re.compile(r"\b(\d+\.\d+)[fF]([+-]?\d+)\b")  # 1.5f-5, a Float32

_DIGITS = 40  # of irrational numbers on the way; what comes out is float64
_SMALLEST = 1e-300  # below it an irrational number is 0
_MAX_SHIFT = 80  # exp(u + k) becomes e^k exp(u) for |k| up to this
_MAX_POWER = 8  # whole and half exponents up to this size are structure


def read_hall_of_fame(path: Path) -> list[Form]:
    """The formulas of a PySR run, simplest first.

    `path` is a hall of fame, the folder of a run, or a folder of runs, of which the newest is read. Variables are y and
    s, or x0 (y) and x1 (s). Every number becomes a constant; whole exponents stay. Raises `InputError` with file, row
    and column if it is not what PySR writes.
    """
    file = _find(path)
    rows = _rows(file)
    ranked = []
    for number, row in enumerate(rows, 2):
        where = f"{file} row {number}"
        rank = tuple(_number(row, column, where) for column in ("Complexity", "Loss"))
        try:
            ranked.append((rank, equation(row["Equation"])))
        except InputError as error:
            raise InputError(f"{where} column Equation: {error}") from None
    if not ranked:
        raise InputError(f"{file}: must have at least one row below the header, got none")
    return [form for _, form in sorted(ranked, key=lambda entry: entry[0])]


def equation(text: str) -> Form:
    """One equation in PySR's spelling as a form. Raises `InputError` if it cannot be read."""
    plain = _JULIA_FLOAT.sub(r"\1e\2", text).replace("^", "**")
    parsed = parse_formula(plain, (Y, S, *_FEATURES), functions=_FUNCTIONS)
    return to_form(parsed.xreplace(_FEATURES), ENGINE)


def _find(path: Path) -> Path:
    """The file to read: PySR writes outputs/RUN/hall_of_fame.csv, and a copy with .bak in case it dies meanwhile."""
    if path.is_file():
        return path
    for name in (NAME, NAME + ".bak"):
        for pattern in (name, f"*/{name}", f"outputs/*/{name}"):
            files = [file for file in path.glob(pattern) if file.is_file()]
            if files:
                return max(files, key=lambda file: (file.stat().st_mtime_ns, str(file)))
    raise InputError(f"--import-pysr must name a {NAME} or a folder of PySR's with one in it, got {path}")


def _rows(file: Path) -> list[dict[str, str]]:
    if file.stat().st_size > MAX_BYTES:
        raise InputError(f"{file}: must be smaller than {MAX_BYTES} bytes, got {file.stat().st_size}")
    try:
        reader = csv.DictReader(io.StringIO(file.read_text("utf-8-sig"), newline=""), strict=True)
        header = reader.fieldnames or []
        missing = [column for column in ("Complexity", "Loss", "Equation") if column not in header]
        if missing:
            raise InputError(f"{file} row 1: columns must include {', '.join(missing)}, got {', '.join(header)!r:.200}")
        rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file}: must be CSV in UTF-8: {error}") from None
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise InputError(f"{file} row {number}: must have as many fields as the header has, {len(header)}")
    return rows


def _number(row: dict[str, str], column: str, where: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise InputError(f"{where} column {column}: must be a number, got {row[column]!r:.200}")
    return value


def to_form(expression: Expr, engine: str) -> Form:
    """`expression` in `Y`, `S` and numbers, as a form: every number that is not structure becomes a constant.

    The factors and terms 1 and -1 are structure, and so are whole and half exponents. Numbers that do each other's
    work become one: in a product, in the coefficients of a quotient, in c·exp(u + k). A part that occurs twice keeps
    the same constants. Raises `InputError` if a number is not real or beyond float64.
    """
    values: list[float] = []

    @cache
    def lift(node: Any) -> Any:
        if not node.free_symbols and not isinstance(node, Expr):
            return node  # true, the last condition of a Piecewise
        if node.is_Pow and _is_structure(node.exp):
            return lift(node.base) ** node.exp
        return node.func(*[number(a) if a.is_Rational else lift(a) for a in node.args]) if node.args else node

    def number(node: Expr) -> Expr:
        if abs(node) == 1:
            return node
        values.append(_float(node))
        return constant(len(values) - 1)

    tidy = _tidy(expression)
    lifted = number(tidy) if tidy.is_Rational else lift(tidy)
    return Form(lifted, tuple(values), engine)


def _is_structure(exponent: Expr) -> bool:
    return bool(exponent.is_Rational and exponent.q <= 2 and abs(exponent) <= _MAX_POWER)


def _float(number: Rational) -> float:
    try:
        return float(number.p / number.q)
    except OverflowError:
        raise InputError("a formula's numbers must be below 1.8e308, got a product that is not") from None


def _rational(number: Expr) -> Rational:
    if number.is_Rational:
        return number
    # By balls first: sympy would compute every digit of exp(exp(exp(9))).
    bound = math.inf if number.has(sympy.I) else magnitude(number)
    if not bound <= LARGEST:
        raise InputError(f"a formula's numbers must be real and below 1.8e308, got {number!s:.200}")
    return Rational(number.evalf(_DIGITS)) if bound >= _SMALLEST else Integer(0)


def _tidy(node: Any) -> Any:
    """The same function with rational numbers and no more of them than it has degrees of freedom."""
    if not isinstance(node, Expr) or not node.args:
        return node if not isinstance(node, Expr) or node.free_symbols else _rational(node)
    if not node.free_symbols:
        return _rational(node)
    arguments = [_tidy(argument) for argument in node.args]
    if node.is_Mul:
        return _product(node.func(*arguments))
    if node.is_Pow:
        base, exponent = arguments
        if base.is_Rational:  # 2**y
            return _tidy(exp(_rational(sympy.log(base)) * exponent))
        return _product(_power(base, exponent)) if exponent.is_Rational else base**exponent
    if isinstance(node, exp):
        shift, rest = arguments[0].as_coeff_Add()
        return exp(rest) * _rational(exp(shift)) if 0 < abs(shift) <= _MAX_SHIFT else exp(arguments[0])
    if isinstance(node, Abs):
        factor, rest = _unscaled(arguments[0])
        return abs(factor) * Abs(rest)
    return node.func(*arguments)


def _unscaled(node: Expr) -> tuple[Rational, Expr]:
    """`node` as a number times the rest; of a sum, the number is the coefficient of greatest absolute value."""
    if not node.is_Add:
        factor, rest = node.as_coeff_Mul()
        return factor, rest
    factor = max((term.as_coeff_Mul()[0] for term in node.args), key=abs)
    return factor, node.func(*[term / factor for term in node.args])


def _power(base: Expr, exponent: Rational) -> Expr:
    factor, rest = _unscaled(base)
    if not exponent.is_Integer and factor < 0:
        factor, rest = -factor, -rest
    return _rational(factor**exponent) * rest**exponent


def _product(node: Expr) -> Expr:
    """The product with one number at most: the factors of its sums are joined and go into its first plain sum."""
    number, rest = node.as_coeff_Mul()
    sums, others = [], []
    for factor in rest.args if rest.is_Mul else (rest,):
        if factor.is_Add:
            scale, factor = _unscaled(factor)
            number *= scale
            sums.append(factor)
        else:
            others.append(factor)
    if sums:
        first, *others[:0] = sorted(sums, key=default_sort_key)
        return sympy.Mul(sympy.Add(*[number * term for term in first.args]), *others)
    return sympy.Mul(number, *others)
