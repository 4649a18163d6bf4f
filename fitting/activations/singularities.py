"""Removable singularities, where a quotient is 0/0 but has a limit: sin(x)/x at 0, (x**2 - 1)/(x - 1) at 1.

`settled` replaces a quotient by a `removable` where both parts are analytic and their zeros are known exactly.
"""

from functools import cache

import sympy
from sympy import Add, Expr, Integer, Mul, Piecewise, Poly, Rational

from actfit.fitting.activations.balls import flint
from actfit.fitting.activations.enclosures import SERIES
from actfit.fitting.activations.functions import StableFunction, maximum, minimum, removable, softsign, x
from actfit.fitting.activations.tape import Tape

HIGHEST = 6  # zeros of higher order are not looked for
_KINKED = (Piecewise, sympy.Abs, sympy.sign, softsign, maximum, minimum)
_AT_ZERO = {
    "sigmoid": Rational(1, 2),
    "softplus": sympy.log(2),
    "tanh": Integer(0),
    "sech": Integer(1),
    "Phi": Rational(1, 2),
    "phi": 1 / sympy.sqrt(2 * sympy.pi),
    "expm1": Integer(0),
    "log1p": Integer(0),
}


def settled(expression: Expr) -> Expr:
    """The expression with a `removable` for each quotient that has a removable singularity."""
    if expression.is_Atom or not expression.has(x):
        return expression
    expression = expression.func(*map(settled, expression.args))
    if expression.is_Mul:
        return _settled_product(expression)
    return _settled_sum(expression) if expression.is_Add else expression


def _settled_product(product: Expr) -> Expr:
    above, base = _parts(product)
    return _quotient(above, base) or product


def _settled_sum(total: Expr) -> Expr:
    """A sum such as 1/tanh(x) - 1/x, whose terms have a pole at the same point: they are put over one divisor."""
    terms = {term: _parts(term) for term in total.args}
    poles = {term: (above, base) for term, (above, base) in terms.items() if base.has(x) and zeros(base)}
    if len(poles) < 2:
        return total
    whole = Mul(*(base for _, base in poles.values()))
    above = Add(*(part * whole / base for part, base in poles.values()))
    quotient = _quotient(above, whole)
    return total if quotient is None else Add(quotient, *(term for term in total.args if term not in poles))


def _parts(term: Expr) -> tuple[Expr, Expr]:
    """Numerator and denominator; powers without x stay in the numerator."""
    under = [
        factor
        for factor in Mul.make_args(term)
        if factor.is_Pow and factor.args[1].is_Integer and factor.args[1].is_negative and factor.args[0].has(x)
    ]
    above = Mul(*(factor for factor in Mul.make_args(term) if factor not in under))
    return above, Mul(*(1 / factor for factor in under))


def _quotient(above: Expr, base: Expr) -> Expr | None:
    if not base.has(x) or not above.has(x) or above.has(*_KINKED) or base.has(*_KINKED):
        return None
    if above.is_polynomial(x) and base.is_polynomial(x):
        whole = sympy.cancel(above / base)
        return whole if not zeros(sympy.fraction(whole)[1]) and zeros(base) else None
    for point in zeros(base):
        order = _order(base, point)
        if order is not None and _order(above, point, order) == order and _analytic(above, base, point):
            return removable(above, base, Integer(1), point, Integer(order))
    return None


def zeros(base: Expr) -> list[Expr]:
    """Rational points at which `base` is 0: all of its polynomial factors, and of other factors only x = 0."""
    points: dict[Expr, None] = {}
    for factor in Mul.make_args(base):
        inner = factor.args[0] if factor.is_Pow else factor
        if inner.is_polynomial(x):
            polynomial = Poly(inner, x)
            rational = polynomial.degree() <= 4 and polynomial.domain in (sympy.ZZ, sympy.QQ)
            points |= dict.fromkeys(polynomial.ground_roots() if rational else {})
        elif at(inner, Integer(0)) == 0:
            points[Integer(0)] = None
    return sorted(points, key=sympy.default_sort_key)


def at(expression: Expr, point: Expr) -> Expr:
    """The exact value of `expression` at a point; it is 0 only where sympy knows it."""
    return expression.xreplace({x: point}).replace(
        lambda node: isinstance(node, StableFunction) and node.args[0] == 0 and type(node).__name__ in _AT_ZERO,
        lambda node: _AT_ZERO[type(node).__name__],
    )


def _order(expression: Expr, point: Expr, enough: int = HIGHEST) -> int | None:
    """The order of the zero at the point, `enough` if it is at least that; None where it cannot be told."""
    for order in range(enough):
        value = at(expression, point)
        if value != 0:
            ball = Tape(value).arb(flint.arb(0))
            return order if ball.is_finite() and not ball.contains(0) else None
        expression = expression.diff(x)
    return enough


def _analytic(above: Expr, base: Expr, point: Expr) -> bool:
    """Whether both have power series at the point; sqrt(x) has none at 0."""
    start = flint.arb_series([SERIES.constant(point), 1], HIGHEST)
    values = [Tape(part).run(SERIES, start) for part in (above, base)]
    return all(isinstance(value, flint.arb_series) and value[HIGHEST - 1].is_finite() for value in values)


@cache
def singular(expression: Expr) -> tuple[Expr, ...]:
    """Rational points where a divisor of the expression is 0 and no limit was found; for an error."""
    points: dict[Expr, None] = {}
    for power in expression.atoms(sympy.Pow):
        if power.args[1].is_negative and power.args[0].has(x):
            points |= dict.fromkeys(zeros(power.args[0]))
    return tuple(points)
