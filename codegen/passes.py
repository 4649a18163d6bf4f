"""Rewrites from a definition to a kernel; each docstring says which digits or instructions the rewrite saves."""

from collections.abc import Callable, Iterable

import sympy
from sympy import Expr, Wild, exp, log

from actfit.codegen import sympy_functions
from actfit.codegen.growth import balanced, hyperbolic, logarithms_of_growth
from actfit.codegen.rewrites import reciprocals
from actfit.fitting.activations.functions import Phi, log1p, phi, sech, sigmoid, softplus, tanh

Pass = Callable[[Expr], Expr]
_u = Wild("u")


def logistic(expression: Expr) -> Expr:
    """(1 + tanh(u))·c is 2c·sigmoid(2u): the sum cancels where u is far below 0."""
    return expression.replace(
        lambda node: node.is_Mul and any(_one_plus_tanh(factor) is not None for factor in node.args),
        lambda node: sympy.Mul(*map(_doubled, node.args)),
    )


def _one_plus_tanh(factor: Expr) -> Expr | None:
    match = factor.match(1 + tanh(_u)) if factor.is_Add else None
    return match[_u] if match else None


def _doubled(factor: Expr) -> Expr:
    inside = _one_plus_tanh(factor)
    return factor if inside is None else 2 * sigmoid(2 * inside)


def softplus_by_name(expression: Expr) -> Expr:
    """log(1 + exp(u)) is softplus(u), which does not overflow."""
    return expression.replace(log(1 + exp(_u)), softplus(_u)).replace(log1p(exp(_u)), softplus(_u))


def sigmoid_by_name(expression: Expr) -> Expr:
    """1/(1 + exp(-u)) is sigmoid(u), which does not overflow."""
    return expression.replace(1 / (1 + exp(_u)), sigmoid(-_u))


def quotient_of_exponentials(expression: Expr) -> Expr:
    """tanh(softplus(u)), of mish, is a quotient of polynomials in one exponential."""
    return expression.replace(tanh(softplus(_u)), sympy_functions.tanh_softplus(_u))


def shrink(expression: Expr) -> Expr:
    """u - tanh(u) is tanhshrink(u): the difference loses all digits next to 0."""
    return expression.replace(
        lambda node: node.is_Add and any(tanh(term) in (-other for other in node.args) for term in node.args), _shrink
    )


def _shrink(node: Expr) -> Expr:
    u = next(term for term in node.args if -tanh(term) in node.args)
    return node - u + tanh(u) + sympy_functions.tanhshrink(u)


def pythagoras(expression: Expr) -> Expr:
    """1 - sech(u)² is tanh(u)², without the cancellation next to 0."""
    return expression.replace(
        lambda node: node.is_Add and 1 in node.args and any(_is_minus_sech2(term) for term in node.args),
        lambda node: (
            sympy.Add(
                *(tanh(term.args[1].args[0].args[0]) ** 2 if _is_minus_sech2(term) else term for term in node.args)
            )
            - 1
        ),
    )


def _is_minus_sech2(term: Expr) -> bool:
    return bool(term.is_Mul and len(term.args) == 2 and term.args[0] == -1 and term.args[1].is_Pow
                and term.args[1].args[1] == 2 and isinstance(term.args[1].args[0], sech))  # fmt: skip


def finer(expression: Expr) -> Expr:
    """Phi in f' to more digits: next to the minimum of gelu, Phi(x) and x·phi(x) cancel."""
    return expression.replace(Phi, sympy_functions.fine_Phi) if expression.has(phi) else expression


def without_zero_sides(expression: Expr) -> Expr:
    """where(y < 0 or y > 0, ...) for a condition that sympy writes as Ne: kernels compare by order only."""
    return expression.replace(
        lambda node: isinstance(node, sympy.Ne),
        lambda node: sympy.Or(node.args[0] < node.args[1], node.args[0] > node.args[1]),
    )


def definition(expression: Expr) -> Expr:
    """f, as it is differentiated."""
    return _through((softplus_by_name, sigmoid_by_name, logistic, quotient_of_exponentials, shrink), expression)


def value(expression: Expr) -> Expr:
    """f, after `definition`, as kernels compute it."""
    return _through((logarithms_of_growth, balanced), expression)


def derivative(expression: Expr) -> Expr:
    """f', or a formula for it, as kernels compute it."""
    return _through((pythagoras, hyperbolic, reciprocals, balanced, finer, without_zero_sides), expression)


def _through(passes: Iterable[Pass], expression: Expr) -> Expr:
    for rewrite in passes:
        expression = rewrite(expression)
    return expression
