"""Sympy functions for the primitives whose usual spelling is unstable in floating point.

The derivative of each is made of stable functions too, so that differentiating an activation never
creates an inf/inf or a difference of nearly equal numbers: plain `sympy.diff` of mish, spelled with
exp and log, is NaN at x = 89 in float32 and at x = 710 in float64.
"""

from collections.abc import Callable
from typing import Any

import mpmath
from sympy import Abs, Expr, Float, Function, Integer, Piecewise, Symbol, exp

x = Symbol("x", real=True)


class StableFunction(Function):
    """A real function of one real variable that sympy does not rewrite."""

    nargs = 1

    def _eval_is_extended_real(self) -> bool:
        return True

    def _eval_evalf(self, prec: int) -> Expr | None:
        # sympy would look the name up in mpmath, where phi is the golden ratio.
        if not self.is_number:
            return None
        with mpmath.workprec(prec + 10):
            at = mpmath.mpf(self.args[0]._to_mpmath(prec + 10))
            return Float._new(DEFINITIONS[type(self).__name__](at)._mpf_, prec)


class sigmoid(StableFunction):
    """1 / (1 + exp(-x))."""

    def fdiff(self, argindex: int = 1) -> Expr:
        return sigmoid(self.args[0]) * sigmoid(-self.args[0])


class softplus(StableFunction):
    """log(1 + exp(x))."""

    def fdiff(self, argindex: int = 1) -> Expr:
        return sigmoid(self.args[0])


class tanh(StableFunction):
    """Hyperbolic tangent; its derivative is sech², without the cancellation of 1 - tanh²."""

    def fdiff(self, argindex: int = 1) -> Expr:
        return sech(self.args[0]) ** 2


class sech(StableFunction):
    """1 / cosh(x)."""

    def fdiff(self, argindex: int = 1) -> Expr:
        return -tanh(self.args[0]) * sech(self.args[0])


class Phi(StableFunction):
    """Distribution function of N(0, 1)."""

    def fdiff(self, argindex: int = 1) -> Expr:
        return phi(self.args[0])


class phi(StableFunction):
    """Density of N(0, 1): exp(-x²/2) / sqrt(2π)."""

    def fdiff(self, argindex: int = 1) -> Expr:
        return -self.args[0] * phi(self.args[0])


class softsign(StableFunction):
    """x / (1 + |x|); its derivative 1 / (1 + |x|)² is exact in relative terms for large x."""

    def fdiff(self, argindex: int = 1) -> Expr:
        return (1 + Abs(self.args[0])) ** Integer(-2)


class expm1(StableFunction):
    """exp(x) - 1."""

    def fdiff(self, argindex: int = 1) -> Expr:
        return exp(self.args[0])


class log1p(StableFunction):
    """log(1 + x), for x > -1."""

    def fdiff(self, argindex: int = 1) -> Expr:
        return 1 / (1 + self.args[0])


class maximum(Function):
    """The larger of two numbers, in formulas only: activations have a Piecewise instead, whose breakpoints count."""

    nargs = 2

    def _eval_is_extended_real(self) -> bool:
        return True

    def fdiff(self, argindex: int = 1) -> Expr:
        a, b = self.args[argindex - 1], self.args[2 - argindex]
        return Piecewise((Integer(1), a > b), (Integer(0), True))


class minimum(Function):
    """The smaller of two numbers, as `maximum`."""

    nargs = 2

    def _eval_is_extended_real(self) -> bool:
        return True

    def fdiff(self, argindex: int = 1) -> Expr:
        a, b = self.args[argindex - 1], self.args[2 - argindex]
        return Piecewise((Integer(1), a < b), (Integer(0), True))


class removable(Function):
    """above / base**power in x; at `point`, `base` has a zero of order `order`, and `above` one of power*order or more.

    So sin(x)/x and its derivatives are functions of all x; `fitting.activations.removable` computes their values.
    """

    nargs = 5

    def _eval_is_extended_real(self) -> bool:
        return True

    def _eval_derivative(self, symbol: Expr) -> Expr:
        above, base, power, point, order = self.args
        numerator = above.diff(symbol) * base - power * above * base.diff(symbol)
        return removable(numerator, base, power + 1, point, order)


STABLE_FUNCTIONS: dict[str, Any] = {
    function.__name__: function for function in (sigmoid, softplus, tanh, sech, Phi, phi, softsign, expm1, log1p)
}


def erfc(u: Any) -> Any:
    """mpmath's erfc, also beyond 1e150, where it overflows: two terms of the asymptotic series, good to 100 digits."""
    return mpmath.erfc(u) if u < 1e25 else mpmath.exp(-u * u) / (u * mpmath.sqrt(mpmath.pi)) * (1 - 1 / (2 * u * u))


# The definition of each function, for evalf, the oracle and the tests.
DEFINITIONS: dict[str, Callable[[Any], Any]] = {
    "sigmoid": lambda u: 1 / (1 + mpmath.exp(-u)),
    "softplus": lambda u: mpmath.log1p(mpmath.exp(u)),
    "tanh": mpmath.tanh,
    "sech": mpmath.sech,
    "Phi": lambda u: erfc(-u / mpmath.sqrt(2)) / 2,
    "phi": mpmath.npdf,
    "softsign": lambda u: u / (1 + abs(u)),
    "expm1": mpmath.expm1,
    "log1p": mpmath.log1p,
}
