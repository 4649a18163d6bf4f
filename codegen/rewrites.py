"""Rewrites of formulas that users write: sums of two terms that nearly cancel, and quotients that overflow.

Each docstring names what the rewrite saves, as in `actfit.codegen.passes`, which run afterwards.
"""

from collections.abc import Callable

import sympy
from sympy import Add, Expr, Mul, erf, exp, log, sqrt

from actfit.codegen.growth import hyperbolic
from actfit.codegen.operands import negated
from actfit.codegen.piecewise import quotient, select
from actfit.fitting.activations.functions import Phi, StableFunction, expm1, sigmoid, softplus, tanh, x


class erfc(StableFunction):
    """1 - erf(x). Sympy's erfc turns erfc(-x) into 2 - erfc(x), which cancels."""

    def fdiff(self, argindex: int = 1) -> Expr:
        return -2 / sqrt(sympy.pi) * exp(-(self.args[0] ** 2))

    def _eval_evalf(self, prec: int) -> Expr | None:
        return sympy.erfc(self.args[0])._eval_evalf(prec) if self.is_number else None


def _normal(u: Expr) -> Expr:
    """Phi(sqrt(2)*u); a factor that is 1 but for its rounding is 1, as in x/1.4142135623730951."""
    number, rest = u.as_independent(*u.free_symbols, as_Add=False)
    factor = (number * sqrt(2)).evalf(30)
    return Phi(rest if abs(factor - 1) <= 2.0**-52 else factor * rest)


# function -> p + p*function(u) and p - p*function(u), each divided by p; None where the sum is as good
_SUMS: dict[type[Expr], tuple[Callable[[Expr], Expr] | None, Callable[[Expr], Expr] | None]] = {
    tanh: (lambda u: 2 * sigmoid(2 * u), lambda u: 2 * sigmoid(-2 * u)),
    erf: (lambda u: 2 * _normal(u), lambda u: 2 * _normal(-u)),
    sigmoid: (None, lambda u: sigmoid(-u)),
    Phi: (None, lambda u: Phi(-u)),
    exp: (None, lambda u: -expm1(u)),
}


def sums_as_products(expression: Expr) -> Expr:
    """p + p*tanh(u) is 2*p*sigmoid(2*u), p - p*sigmoid(u) is p*sigmoid(-u), and so on: products do not cancel."""
    return expression.replace(lambda node: node.is_Add, _as_product)


def _as_product(total: Expr) -> Expr:
    terms = list(Add.make_args(total))
    for term in terms:
        for function in (factor for factor in Mul.make_args(term) if type(factor) in _SUMS):
            part = term / function
            for rewrite, partner in zip(_SUMS[type(function)], (part, -part), strict=True):
                if rewrite is not None and partner in terms:
                    rest = [other for other in terms if other not in (term, partner)]
                    return _as_product(Add(*rest, partner * rewrite(function.args[0])))
    return total


def reciprocals(expression: Expr) -> Expr:
    """1/(1 + exp(u))**k is sigmoid(-u)**k, which does not overflow; likewise with other positive numbers than 1."""
    return expression.replace(lambda node: node.is_Pow and node.args[1].is_negative, _logistic)


def _logistic(reciprocal: Expr) -> Expr:
    base, exponent = reciprocal.args
    c, rest = base.as_coeff_Add()
    k, power = rest.as_coeff_Mul()
    if not isinstance(power, exp) or not (c.is_positive and k.is_positive):
        return reciprocal
    return (sigmoid(negated(power.args[0]) - log(k / c)) / c) ** -exponent


def exponentials(expression: Expr) -> Expr:
    """exp(u)*sigmoid(c - u) is exp(c)*sigmoid(u - c), for a number c: the first factor overflows where the second
    vanishes."""
    return expression.replace(lambda node: node.is_Mul, _one_sided)


def _one_sided(product: Expr) -> Expr:
    factors = list(product.args)
    grown = next((factor for factor in factors if isinstance(factor, exp)), None)
    if grown is None:
        return product
    for factor in factors:
        base, power = factor.as_base_exp()
        if isinstance(base, sigmoid) and power.is_positive and (base.args[0] + grown.args[0]).is_number:
            rest = [other for other in factors if other not in (factor, grown)]
            constant = exp(base.args[0] + grown.args[0])
            return Mul(*rest, base ** (power - 1), constant * sigmoid(negated(base.args[0])))
    return product


def half_tangents(expression: Expr) -> Expr:
    """expm1(u)*sigmoid(-u) is tanh(u/2), where the first factor overflows; its derivative does not cancel either."""
    return expression.replace(lambda node: node.is_Mul, _half_tangent)


def _half_tangent(product: Expr) -> Expr:
    for factor in product.args:
        if isinstance(factor, expm1) and sigmoid(negated(factor.args[0])) in product.args:
            u = factor.args[0]
            return Mul(*(other for other in product.args if other not in (factor, sigmoid(negated(u)))), tanh(u / 2))
    return product


def logarithms(expression: Expr) -> Expr:
    """log(sigmoid(u)) is -softplus(-u), also where sigmoid(u) is 0."""
    u = sympy.Wild("u")
    return expression.replace(log(sigmoid(u)), -softplus(-u))


_DIVIDES = (-1, -sympy.Rational(1, 2))


def quotients(expression: Expr) -> Expr:
    """n/d as one function `quotient`, where d depends on x: its derivative overflows only where n/d does."""
    if expression.is_Atom:
        return expression
    factors = Mul.make_args(expression)
    under = [factor for factor in factors if factor.is_Pow and factor.args[1] in _DIVIDES and factor.has(x)]
    if not under:
        return expression.func(*map(quotients, expression.args))
    above = Mul(*(factor for factor in factors if factor not in under))
    return quotient(quotients(above), quotients(Mul(*(1 / factor for factor in under))))


def masked(expression: Expr) -> Expr:
    """p*where(c, 0, a) is where(c, 0, p*a), which is 0 also where p is infinite, as in torch's backward."""
    return expression.replace(lambda node: node.is_Mul, _masked)


def _masked(product: Expr) -> Expr:
    factors = Mul.make_args(product)
    for index, factor in enumerate(factors):
        if isinstance(factor, select) and len(factors) > 1 and 0 in factor.args[1:]:
            condition, *branches = factor.args
            others = Mul(*factors[:index], *factors[index + 1 :])
            return select(condition, *(_masked(others * branch) for branch in branches))
    return product


def rewritten(expression: Expr) -> Expr:
    """The expression after all rewrites but `quotients` and `masked`."""
    for rewrite in (hyperbolic, reciprocals, exponentials, sums_as_products, half_tangents, logarithms):
        expression = rewrite(expression)
    return expression
