"""Sympy functions that only rewrites introduce, where the plain spelling would lose digits."""

from sympy import Expr, Function

from actfit.fitting.activations.functions import StableFunction, sigmoid, tanh


class RewriteFunction(StableFunction):
    """A function that a rewrite introduces; it is never evaluated at a number."""

    def _eval_evalf(self, prec: int) -> None:
        return None


class tanh_softplus(RewriteFunction):
    """tanh(log(1 + exp(x))): a quotient of polynomials in exp(-|x|), with one exponential instead of three."""

    def fdiff(self, argindex: int = 1) -> Expr:
        return sigmoid(self.args[0]) * sech2_softplus(self.args[0])


class sech2_softplus(RewriteFunction):
    """1 - tanh(log(1 + exp(x)))², without the cancellation."""


class tanhshrink(RewriteFunction):
    """x - tanh(x), without the cancellation next to 0."""

    def fdiff(self, argindex: int = 1) -> Expr:
        return tanh(self.args[0]) ** 2


class fine_Phi(RewriteFunction):
    """Phi, to more digits than Phi has in 16 bits: in f' of gelu it is one of two terms that cancel."""


class patched(Function):
    """A plain quotient, and the `removable` of the same value, which replaces it next to where it is 0/0."""

    nargs = 2

    def _eval_is_extended_real(self) -> bool:
        return True

    def _eval_derivative(self, symbol: Expr) -> Expr:
        return patched(*(part.diff(symbol) for part in self.args))
