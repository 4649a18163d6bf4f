"""Evaluate a sympy expression without generating code: a list of instructions and a table of heads.

One tape serves three arithmetics: numpy float64 (fast, over arrays), mpmath (50 digits, the oracle) and
arb balls (rigorous enclosures over whole intervals; also machine-independent correctly rounded results).
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import flint
import mpmath
import numpy as np
import sympy
from numpy.typing import NDArray
from scipy import special
from sympy import Expr
from sympy.functions.elementary.piecewise import ExprCondPair

from fitting.activations.grammar import x

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Arithmetic:
    """What a tape needs of a number system."""

    name: str
    constant: Callable[[Expr], Any]
    functions: dict[str, Callable[..., Any]]
    power: Callable[[Any, Any], Any]
    select: Callable[..., Any]

    def operation(self, node: Expr) -> Callable[..., Any]:
        """The function that makes `node`'s value from the values of its arguments."""
        if node.is_Add or node.is_Mul:
            combine = operator.add if node.is_Add else operator.mul
            return lambda *operands: reduce(combine, operands)
        if node.is_Pow:
            exponent = node.args[1]
            if exponent.is_Integer:
                return lambda base, _: self.power(base, int(exponent))
            return self.power
        if isinstance(node, sympy.Piecewise):
            return self.select
        if isinstance(node, ExprCondPair):
            return lambda value, condition: (value, condition)
        return self.functions[type(node).__name__]


class Tape:
    """The instructions of one expression in `x`, common subexpressions computed once."""

    def __init__(self, expression: Expr) -> None:
        self.expression = expression
        self._nodes: list[tuple[Expr, tuple[int, ...]]] = []
        self._index: dict[Expr, int] = {}
        self._programs: dict[str, list[tuple[Callable[..., Any], tuple[int, ...]]]] = {}
        self._add(expression)

    def _add(self, node: Expr) -> int:
        if node not in self._index:
            operands = tuple(self._add(argument) for argument in node.args)
            self._nodes.append((node, operands))
            self._index[node] = len(self._nodes) - 1
        return self._index[node]

    def run(self, arithmetic: Arithmetic, value: Any) -> Any:
        """The expression at x = `value`, in that arithmetic."""
        if arithmetic.name not in self._programs:
            self._programs[arithmetic.name] = [
                (arithmetic.operation(node), operands) if operands else (partial(arithmetic.constant, node), ())
                for node, operands in self._nodes
            ]
        cells: list[Any] = []
        for (node, _), (operation, operands) in zip(self._nodes, self._programs[arithmetic.name], strict=True):
            cells.append(value if node == x else operation(*[cells[i] for i in operands]))
        return cells[-1]

    def numpy(self, values: Array) -> Array:
        """Float64 values at each of `values`; overflow and invalid operations are silent (inf, NaN)."""
        with np.errstate(all="ignore"):
            return np.broadcast_to(np.asarray(self.run(NUMPY, values), dtype=np.float64), np.shape(values)).copy()

    def mp(self, value: Any) -> Any:
        """The value at `value` (an `mpf`), at mpmath's current precision."""
        return self.run(MPMATH, value)

    def arb(self, ball: Any) -> Any:
        """A ball that holds every value over `ball` (an `arb`), at flint's current precision."""
        return self.run(ARB, ball)

    def acb(self, ball: Any) -> Any:
        """The same over a complex `acb`; not finite wherever the expression is not analytic on it."""
        return self.run(ACB, ball)


def _numpy_select(*branches: tuple[Any, Any]) -> Any:
    values, conditions = zip(*branches, strict=True)
    shape = np.broadcast_shapes(*map(np.shape, values), *map(np.shape, conditions))
    return np.select([np.broadcast_to(c, shape) for c in conditions], [np.broadcast_to(v, shape) for v in values])


def _numpy_power(base: Any, exponent: Any) -> Any:
    if isinstance(exponent, int):
        # numpy's array**int goes through pow(); repeated products are exact in order and much faster.
        power = (
            np.multiply.reduce([base] * abs(exponent)) if 0 < abs(exponent) <= 4 else np.power(base, float(exponent))
        )
        return 1 / power if -4 <= exponent < 0 else power
    return np.sqrt(base) if np.isscalar(exponent) and exponent == 0.5 else np.power(base, exponent)


def _first_true(*branches: tuple[Any, Any]) -> Any:
    return next(value for value, condition in branches if condition)


def _both(*conditions: Any) -> Any:
    return np.logical_and.reduce(np.broadcast_arrays(*conditions))


def _either(*conditions: Any) -> Any:
    return np.logical_or.reduce(np.broadcast_arrays(*conditions))


_COMPARISONS: dict[str, Callable[..., Any]] = {
    "StrictLessThan": lambda a, b: a < b,
    "LessThan": lambda a, b: a <= b,
    "StrictGreaterThan": lambda a, b: a > b,
    "GreaterThan": lambda a, b: a >= b,
}

NUMPY = Arithmetic(
    "numpy",
    constant=lambda node: bool(node) if node in (sympy.true, sympy.false) else float(node),
    functions={
        **{name: getattr(np, name) for name in ("exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "sign")},
        "expm1": np.expm1,
        "log1p": np.log1p,
        "Abs": np.abs,
        "atan": np.arctan,
        "erf": special.erf,
        "erfc": special.erfc,
        "sigmoid": special.expit,
        "softplus": lambda u: np.logaddexp(0.0, u),
        "sech": lambda u: 1 / np.cosh(u),
        "Phi": special.ndtr,
        "phi": lambda u: np.exp(-0.5 * u * u) / np.sqrt(2 * np.pi),
        "softsign": lambda u: u / (1 + np.abs(u)),
        "And": _both,
        "Or": _either,
        **_COMPARISONS,
    },
    power=_numpy_power,
    select=_numpy_select,
)


def _mp_constant(node: Expr) -> Any:
    if node in (sympy.true, sympy.false):
        return bool(node)
    if node.is_Rational:
        return mpmath.mpf(node.p) / node.q
    return {sympy.pi: mpmath.mp.pi, sympy.E: mpmath.mp.e}[node] * 1


MPMATH = Arithmetic(
    "mpmath",
    constant=_mp_constant,
    functions={
        **{
            name: getattr(mpmath, name)
            for name in (
                "exp",
                "log",
                "sin",
                "cos",
                "tan",
                "sinh",
                "cosh",
                "tanh",
                "atan",
                "sech",
                "erf",
                "erfc",
            )
        },
        "sign": mpmath.sign,
        "Abs": abs,
        "expm1": mpmath.expm1,
        "log1p": mpmath.log1p,
        "sigmoid": lambda u: 1 / (1 + mpmath.exp(-u)),
        "softplus": lambda u: mpmath.log1p(mpmath.exp(u)),
        "Phi": lambda u: mpmath.erfc(-u / mpmath.sqrt(2)) / 2,
        "phi": mpmath.npdf,
        "softsign": lambda u: u / (1 + abs(u)),
        "And": lambda *conditions: all(conditions),
        "Or": lambda *conditions: any(conditions),
        **_COMPARISONS,
    },
    power=lambda base, exponent: base**exponent,
    select=_first_true,
)


def _arb_constant(node: Expr) -> Any:
    if node in (sympy.true, sympy.false):
        return bool(node)
    if node.is_Rational:
        return flint.arb(node.p) / node.q
    return {sympy.pi: flint.arb.pi, sympy.E: flint.arb.const_e}[node]()


def _method(name: str) -> Callable[[Any], Any]:
    return lambda ball: getattr(ball, name)()


def _of_middle(comparison: Callable[..., Any]) -> Callable[[Any, Any], bool]:
    # A condition holds for a ball when it holds for its middle: callers keep balls within one piece.
    return lambda a, b: bool(comparison(float((a - b).mid()), 0.0))


_ELEMENTARY = ("exp", "expm1", "sin", "cos", "tan", "sinh", "cosh", "tanh", "sech", "erf", "erfc")
_ENTIRE: dict[str, Callable[..., Any]] = {
    **{name: _method(name) for name in _ELEMENTARY},
    "sigmoid": lambda u: 1 / (1 + (-u).exp()),
    "Phi": lambda u: (-u / flint.arb(2).sqrt()).erfc() / 2,
    "phi": lambda u: (-(u**2) / 2).exp() / (2 * flint.arb.pi()).sqrt(),
}

ARB = Arithmetic(
    "arb",
    constant=_arb_constant,
    functions={
        **_ENTIRE,
        **{name: _method(name) for name in ("log", "log1p", "atan")},
        "sign": lambda u: u.sgn(),
        "Abs": abs,
        "softplus": lambda u: u.exp().log1p(),
        "softsign": lambda u: u / (1 + abs(u)),
        "And": lambda *conditions: all(conditions),
        "Or": lambda *conditions: any(conditions),
        **{name: _of_middle(comparison) for name, comparison in _COMPARISONS.items()},
    },
    power=lambda base, exponent: base**exponent,
    select=_first_true,
)

_I = flint.acb(0, 1)

# Of a smooth piece only: no conditions or absolute values. log and its kin answer "not finite" on their cuts.
ACB = Arithmetic(
    "acb",
    constant=lambda node: flint.acb(_arb_constant(node)),
    functions={
        **_ENTIRE,
        "log": lambda u: u.log(analytic=True),
        "log1p": lambda u: (1 + u).log(analytic=True),
        "softplus": lambda u: (1 + u.exp()).log(analytic=True),
        "atan": lambda u: ((1 + _I * u).log(analytic=True) - (1 - _I * u).log(analytic=True)) / (2 * _I),
    },
    power=lambda base, exponent: base**exponent if isinstance(exponent, int) else base.pow(exponent, analytic=True),
    select=_first_true,
)
