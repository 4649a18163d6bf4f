"""Heads that exist on the way to a kernel only: what a rewrite puts where a plainer spelling would lose digits."""

import mpmath
from sympy import Expr, Function

from fitting.activations.functions import DEFINITIONS, StableFunction, sigmoid, tanh


class EmittedHead(StableFunction):
    """One of these: sympy has no need of its value at a number."""

    def _eval_evalf(self, prec: int) -> None:
        return None


class tanh_softplus(EmittedHead):
    """tanh(log(1 + exp(x))): a quotient of polynomials in exp(-|x|), with one exponential instead of three."""

    def fdiff(self, argindex: int = 1) -> Expr:
        return sigmoid(self.args[0]) * sech2_softplus(self.args[0])


class sech2_softplus(EmittedHead):
    """1 - tanh(log(1 + exp(x)))², without the cancellation."""


class tanhshrink(EmittedHead):
    """x - tanh(x), without the cancellation next to 0."""

    def fdiff(self, argindex: int = 1) -> Expr:
        return tanh(self.args[0]) ** 2


class fine_Phi(EmittedHead):
    """Phi, to more digits where 16 bits ask for few: in f' of gelu it is one of two terms that cancel."""


class patched(Function):
    """A plain quotient, and the `removable` of the same value, which counts next to where the quotient is 0/0."""

    nargs = 2

    def _eval_is_extended_real(self) -> bool:
        return True

    def _eval_derivative(self, symbol: Expr) -> Expr:
        return patched(*(part.diff(symbol) for part in self.args))


def _softplus(u: object) -> object:
    return DEFINITIONS["softplus"](u)


MEANING = {
    **DEFINITIONS,
    "tanh_softplus": lambda u: mpmath.tanh(_softplus(u)),
    "sech2_softplus": lambda u: mpmath.sech(_softplus(u)) ** 2,
    "fine_Phi": DEFINITIONS["Phi"],
    "tanhshrink": lambda u: u - mpmath.tanh(u),
}
"""What every head of one argument means, in mpmath: the definitions that the emitted primitives are tested against."""
