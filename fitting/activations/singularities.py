"""Where a quotient is 0/0 and yet a function: sin(x)/x at 0, (x**2 - 1)/(x - 1) at 1.

`settled` makes a `removable` of each that it can tell to be one: both parts analytic there, and zeros exact.
"""

from functools import cache

import sympy
from sympy import Add, Expr, Integer, Mul, Piecewise, Poly, Rational

from fitting.activations.balls import flint
from fitting.activations.enclosures import SERIES
from fitting.activations.heads import Head, maximum, minimum, removable, softsign, x
from fitting.activations.tape import Tape

HIGHEST = 6  # order of a zero that is looked for
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
    """The expression with each quotient that has a removable singularity as `removable`."""
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
    """1/tanh(x) - 1/x: terms with a pole at the same point, together."""
    terms = {term: _parts(term) for term in total.args}
    poles = {term: (above, base) for term, (above, base) in terms.items() if base.has(x) and zeros(base)}
    if len(poles) < 2:
        return total
    whole = Mul(*(base for _, base in poles.values()))
    above = Add(*(part * whole / base for part, base in poles.values()))
    found = _quotient(above, whole)
    return total if found is None else Add(found, *(term for term in total.args if term not in poles))


def _parts(term: Expr) -> tuple[Expr, Expr]:
    """Above and below the line, of what depends on x."""
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
    """Rational points at which it is 0: of polynomials all, of other factors 0."""
    found: dict[Expr, None] = {}
    for factor in Mul.make_args(base):
        inner = factor.args[0] if factor.is_Pow else factor
        if inner.is_polynomial(x):
            polynomial = Poly(inner, x)
            rational = polynomial.degree() <= 4 and polynomial.domain in (sympy.ZZ, sympy.QQ)
            found |= dict.fromkeys(polynomial.ground_roots() if rational else {})
        elif at(inner, Integer(0)) == 0:
            found[Integer(0)] = None
    return sorted(found, key=sympy.default_sort_key)


def at(expression: Expr, point: Expr) -> Expr:
    """Its value at a point, exactly; 0 only where sympy knows it to be."""
    return expression.xreplace({x: point}).replace(
        lambda node: isinstance(node, Head) and node.args[0] == 0 and type(node).__name__ in _AT_ZERO,
        lambda node: _AT_ZERO[type(node).__name__],
    )


def _order(expression: Expr, point: Expr, enough: int = HIGHEST) -> int | None:
    """Of the zero at the point, or `enough` where it is that at least; None where it cannot be told."""
    for order in range(enough):
        value = at(expression, point)
        if value != 0:
            ball = Tape(value).arb(flint.arb(0))
            return order if ball.is_finite() and not ball.contains(0) else None
        expression = expression.diff(x)
    return enough


def _analytic(above: Expr, base: Expr, point: Expr) -> bool:
    """Whether both have power series there: of sqrt(x) there is none at 0."""
    start = flint.arb_series([SERIES.constant(point), 1], HIGHEST)
    values = [Tape(part).run(SERIES, start) for part in (above, base)]
    return all(isinstance(value, flint.arb_series) and value[HIGHEST - 1].is_finite() for value in values)


@cache
def singular(expression: Expr) -> tuple[Expr, ...]:
    """Rational points where a divisor of the expression is 0 and no limit was found, for a message."""
    found: dict[Expr, None] = {}
    for power in expression.atoms(sympy.Pow):
        if power.args[1].is_negative and power.args[0].has(x):
            found |= dict.fromkeys(zeros(power.args[0]))
    return tuple(found)
