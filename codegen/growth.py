"""Products of a factor that overflows and one that vanishes, as one exponential times bounded factors.

Each function below is exp(exponent) times a bounded part: cosh(u) = exp(|u|) / (2*sigmoid(2*|u|)). In a product the
exponents add up, so sinh(x)*sech(2*x) is exp(-|x|) times bounded parts, instead of inf*0.
"""

from collections.abc import Callable

import sympy
from sympy import Abs, Add, Expr, Integer, Mul, exp, log

from actfit.fitting.activations.functions import expm1, log1p, phi, sech, sigmoid, tanh

_ROOT = 1 / sympy.sqrt(2 * sympy.pi)


# function -> (exponent, bounded part)
_PARTS: dict[type[Expr], Callable[[Expr], tuple[Expr, Expr]]] = {
    exp: lambda u: (u, Integer(1)),
    sympy.cosh: lambda u: (Abs(u), 1 / (2 * sigmoid(2 * Abs(u)))),
    sympy.sinh: lambda u: (Abs(u), tanh(u) / (2 * sigmoid(2 * Abs(u)))),
    expm1: lambda u: ((u + Abs(u)) / 2, -sympy.sign(u) * expm1(-Abs(u))),
    sech: lambda u: (-Abs(u), 2 * sigmoid(2 * Abs(u))),
    sigmoid: lambda u: ((u - Abs(u)) / 2, sigmoid(Abs(u))),
    phi: lambda u: (-(u**2) / 2, _ROOT),
}
_GROWING = (sympy.cosh, sympy.sinh, expm1)


def hyperbolic(expression: Expr) -> Expr:
    """Quotients that overflow: cosh(u)**-n is sech(u)**n, sinh(u)*sech(u) is tanh(u).

    First exp(u) + exp(-u) becomes 2*cosh(u), and 1 + sinh(u)**2 becomes cosh(u)**2.
    """
    expression = expression.replace(lambda node: node.is_Add, _as_hyperbolic)
    expression = expression.replace(
        lambda node: node.is_Pow and isinstance(node.args[0], sympy.cosh | sympy.sinh) and node.args[1].is_negative,
        lambda node: _reciprocal(node.args[0]) ** -node.args[1],
    )
    return expression.replace(lambda node: node.is_Mul, _tangents)


def _as_hyperbolic(total: Expr) -> Expr:
    terms = list(total.args)
    for term in terms:
        if term.is_Pow and term.args[1] == 2 and isinstance(term.args[0], sympy.sinh) and 1 in terms:
            rest = [other for other in terms if other not in (term, 1)]
            return _as_hyperbolic(Add(*rest, sympy.cosh(term.args[0].args[0]) ** 2))
        for factor in Mul.make_args(term):
            if not isinstance(factor, exp) or not factor.free_symbols:
                continue
            part, mirror = term / factor, exp(-factor.args[0])
            for sign, function in ((1, sympy.cosh), (-1, sympy.sinh)):
                if sign * part * mirror in terms and term != sign * part * mirror:
                    rest = [other for other in terms if other not in (term, sign * part * mirror)]
                    return _as_hyperbolic(Add(*rest, 2 * part * function(factor.args[0])))
    return total


def _reciprocal(node: Expr) -> Expr:
    u = node.args[0]
    return sech(u) if isinstance(node, sympy.cosh) else sech(u) / tanh(u)


def _tangents(product: Expr) -> Expr:
    powers = dict(_as_power(factor) for factor in product.args if not isinstance(factor, exp))
    for base, power in powers.items():
        if isinstance(base, sech) and power.is_positive:
            for function, result in ((sympy.cosh, Integer(1)), (sympy.sinh, tanh(base.args[0]))):
                grows = function(base.args[0])
                count = sympy.Min(power, powers.get(grows, Integer(0)))
                if count.is_Integer and count > 0:
                    return _tangents(product / (base * grows) ** count * result**count)
    return product


def _as_power(factor: Expr) -> tuple[Expr, Expr]:
    return (factor.args[0], factor.args[1]) if factor.is_Pow else (factor, Integer(1))


def logarithms_of_growth(expression: Expr) -> Expr:
    """log(cosh(u)) is |u| + log1p(expm1(-2*|u|)/2), also where cosh(u) overflows. For values: differentiate first."""
    return expression.replace(lambda node: isinstance(node, log), _log_of_growth)


def _log_of_growth(node: Expr) -> Expr:
    number, rest = node.args[0].as_coeff_Mul()
    if not isinstance(rest, sympy.cosh) or not number.is_positive:
        return node
    u = rest.args[0]
    return Abs(u) + log1p(expm1(-2 * Abs(u)) / 2) + log(number)


def balanced(expression: Expr) -> Expr:
    """exp(u)*sech(v) is one exponential times a bounded part, where the product may be inf*0."""
    if expression.is_Atom:
        return expression
    expression = expression.func(*map(balanced, expression.args))
    return _balanced(expression) if expression.is_Mul else expression


def _balanced(product: Expr) -> Expr:
    powers = [_as_power(factor) for factor in product.args]
    parts = [(base, power) for base, power in powers if type(base) in _PARTS and not _bounded(base)]
    grows = [power.is_positive == (isinstance(base, _GROWING) or _exponent_grows(base)) for base, power in parts]
    if (
        len(parts) < 2
        or not any(grows)
        or all(isinstance(base, _GROWING) and power.is_positive for base, power in parts)
    ):
        return product
    exponent, bounded = Integer(0), []
    for base, power in parts:
        part, rest = _PARTS[type(base)](base.args[0])
        exponent += power * part
        bounded.append(rest**power)
    others = [base**power for base, power in powers if (base, power) not in parts]
    return Mul(exp(sympy.expand_mul(exponent)), *bounded, *others)


def _bounded(base: Expr) -> bool:
    """Whether `base` and its reciprocal are bounded, as the bounded parts above are."""
    u = base.args[0]
    return bool(
        not u.free_symbols
        or (isinstance(base, sigmoid) and u.is_nonnegative)
        or (isinstance(base, expm1) and u.is_nonpositive)
    )


def _exponent_grows(base: Expr) -> bool:
    """Whether exp(u) may be large: u is not known to be at most 0."""
    return isinstance(base, exp) and not base.args[0].is_nonpositive
