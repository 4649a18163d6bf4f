"""The number systems of a tape, each a table from names of sympy's functions to implementations.

mpmath (50 digits, the oracle), arb balls (rigorous enclosures over whole intervals; also machine-independent correctly
rounded results) and acb, the same in the complex plane. Those of numpy are in `fitting.activations.floats`.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import mpmath
import sympy
from sympy import Expr
from sympy.functions.elementary.piecewise import ExprCondPair

from actfit.fitting.activations.balls import flint
from actfit.fitting.activations.functions import DEFINITIONS, erfc


@dataclass(frozen=True)
class Arithmetic:
    """A number system, as a tape uses it."""

    name: str
    constant: Callable[[Expr], Any]
    functions: dict[str, Callable[..., Any]]
    power: Callable[[Any, Any], Any]
    select: Callable[..., Any]

    def operation(self, node: Expr) -> Callable[..., Any]:
        """The function from the values of `node`'s arguments to its value; for a power with a whole exponent, from
        that of the base."""
        if node.is_Add or node.is_Mul:
            combine = operator.add if node.is_Add else operator.mul
            return combine if len(node.args) == 2 else lambda *operands: reduce(combine, operands)
        if node.is_Pow:
            exponent = node.args[1]
            if exponent.is_Integer:
                power, whole = self.power, int(exponent)
                return lambda base: power(base, whole)
            return self.power
        if isinstance(node, sympy.Piecewise):
            return self.select
        if isinstance(node, ExprCondPair):
            return lambda value, condition: (value, condition)
        return self.functions[type(node).__name__]


# Values that sympy may give a branch that is not defined, such as the derivative of 0**c.
NOT_REAL = (sympy.nan, sympy.zoo, sympy.oo, -sympy.oo, sympy.I)


def _first_true(*branches: tuple[Any, Any]) -> Any:
    return next(value for value, condition in branches if condition)


COMPARISONS: dict[str, Callable[..., Any]] = {
    "StrictLessThan": operator.lt,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge,
}

# Of mpmath and arb, where a condition is one bool.
_LOGIC: dict[str, Callable[..., Any]] = {
    "And": lambda *conditions: all(conditions),
    "Or": lambda *conditions: any(conditions),
    "Not": operator.not_,
}


@lru_cache(maxsize=4096)
def _kind(node: Expr) -> bool | str | tuple[Any, Any]:
    """A constant as a truth value, a name, or numerator and denominator. Cached for each node, as sympy's comparisons
    take far longer than the arithmetic."""
    if node in (sympy.true, sympy.false):
        return bool(node)
    if node in NOT_REAL:
        return "nan"
    return (node.p, node.q) if node.is_Rational else {sympy.pi: "pi", sympy.E: "e"}[node]


def _mp_constant(node: Expr) -> Any:
    match _kind(node):
        case (p, q):
            return mpmath.mpf(p) / q
        case "nan":
            return mpmath.nan
        case str(name):
            return getattr(mpmath.mp, name) * 1
        case truth:
            return truth


def _real(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, NaN where mpmath leaves the real numbers or divides by zero."""

    def real(*operands: Any) -> Any:
        try:
            result = function(*operands)
        except ZeroDivisionError:
            return mpmath.nan
        return result if isinstance(result, mpmath.mpf) else mpmath.nan

    return real


MPMATH = Arithmetic(
    "mpmath",
    constant=_mp_constant,
    functions={
        **{name: getattr(mpmath, name) for name in ("exp", "sin", "cos", "tan", "sinh", "cosh", "atan", "erf")},
        **{name: _real(definition) for name, definition in DEFINITIONS.items()},
        "erfc": erfc,
        "log": _real(mpmath.log),
        "sign": mpmath.sign,
        "Abs": abs,
        "maximum": max,
        "minimum": min,
        **_LOGIC,
        **COMPARISONS,
    },
    power=_real(operator.pow),
    select=_first_true,
)


def _arb_constant(node: Expr) -> Any:
    match _kind(node):
        case (p, q):
            return flint.arb(p) / q
        case "nan":
            return flint.arb("nan")
        case str(name):
            return flint.arb.pi() if name == "pi" else flint.arb.const_e()
        case truth:
            return truth


def _method(name: str) -> Callable[[Any], Any]:
    return lambda ball: getattr(ball, name)()


def _of_middle(comparison: Callable[..., Any]) -> Callable[[Any, Any], bool]:
    # A condition holds for a ball when it holds for its middle: callers keep balls within one piece.
    return lambda a, b: bool(comparison((a - b).mid(), 0))


def _arb_power(base: Any, exponent: Any) -> Any:
    if not isinstance(exponent, int) or not base.contains(0):
        return base**exponent
    # flint's own integer power is NaN where the ball holds 0.
    if exponent < 2:
        return base if exponent == 1 else 1 / _arb_power(base, -exponent)
    half = _arb_power(base, exponent // 2)
    return half * half * base if exponent % 2 else half * half


def _sigmoid(u: Any) -> Any:
    result = 1 / (1 + (-u).exp())
    return result if result.is_finite() else u.exp() / (1 + u.exp())


def _softplus(u: Any) -> Any:
    result = u.exp().log1p()
    return result if result.is_finite() else u + (-u).exp().log1p()


_ELEMENTARY = ("exp", "expm1", "sin", "cos", "tan", "sinh", "cosh", "tanh", "sech", "erf", "erfc")
_ENTIRE: dict[str, Callable[..., Any]] = {
    **{name: _method(name) for name in _ELEMENTARY},
    "sigmoid": _sigmoid,
    "Phi": lambda u: (-u / flint.arb(2).sqrt()).erfc() / 2,
    "phi": lambda u: (-_arb_power(u, 2) / 2).exp() / (2 * flint.arb.pi()).sqrt(),
}

ARB = Arithmetic(
    "arb",
    constant=_arb_constant,
    functions={
        **_ENTIRE,
        **{name: _method(name) for name in ("log", "log1p", "atan")},
        "sign": lambda u: u.sgn(),
        "Abs": abs,
        "maximum": lambda a, b: a.max(b),
        "minimum": lambda a, b: a.min(b),
        "softplus": _softplus,
        "softsign": lambda u: u / (1 + abs(u)),
        **_LOGIC,
        **{name: _of_middle(comparison) for name, comparison in COMPARISONS.items()},
    },
    power=_arb_power,
    select=_first_true,
)


def _atan(u: Any) -> Any:
    i = flint.acb(0, 1)
    return ((1 + i * u).log(analytic=True) - (1 - i * u).log(analytic=True)) / (2 * i)


# For smooth pieces only: no conditions or absolute values. log and the like are not finite on their cuts.
ACB = Arithmetic(
    "acb",
    constant=lambda node: flint.acb(_arb_constant(node)),
    functions={
        **_ENTIRE,
        "log": lambda u: u.log(analytic=True),
        "log1p": lambda u: (1 + u).log(analytic=True),
        "softplus": lambda u: (1 + u.exp()).log(analytic=True),
        "atan": _atan,
    },
    power=lambda base, exponent: base**exponent if isinstance(exponent, int) else base.pow(exponent, analytic=True),
    select=_first_true,
)
