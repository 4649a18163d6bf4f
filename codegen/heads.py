"""Heads that exist on the way to a kernel only: what a rewrite puts where a plainer spelling would lose digits."""

import mpmath
from sympy import Expr

from fitting.activations.heads import DEFINITIONS, Head, sigmoid, tanh


class tanh_softplus(Head):
    """tanh(log(1 + exp(x))): a quotient of polynomials in exp(-|x|), with one exponential instead of three."""

    def fdiff(self, argindex: int = 1) -> Expr:
        return sigmoid(self.args[0]) * sech2_softplus(self.args[0])


class sech2_softplus(Head):
    """1 - tanh(log(1 + exp(x)))², without the cancellation."""


class tanhshrink(Head):
    """x - tanh(x), without the cancellation next to 0."""

    def fdiff(self, argindex: int = 1) -> Expr:
        return tanh(self.args[0]) ** 2


def _softplus(u: object) -> object:
    return DEFINITIONS["softplus"](u)


MEANING = {
    **DEFINITIONS,
    "tanh_softplus": lambda u: mpmath.tanh(_softplus(u)),
    "sech2_softplus": lambda u: mpmath.sech(_softplus(u)) ** 2,
    "tanhshrink": lambda u: u - mpmath.tanh(u),
}
"""What every head of one argument means, in mpmath: the definitions that the emitted primitives are tested against."""
