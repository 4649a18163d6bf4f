"""The chain rule backwards: f'(x) on one arc of f as an expression in y = f(x). No equation is solved.

Where x occurs in one argument only, f = h(u), and h' is known as a function of h's own value (sigmoid' = v(1 - v)),
then f' = h'(v)·u'(x): u' is a number if u is affine, and otherwise a function of u = h⁻¹(v), by the same rule.
"""

from collections.abc import Callable

import sympy
from sympy import Abs, Dummy, Expr, Integer, Mul, Piecewise, Poly, Rational, Wild, cos, exp, log, sqrt, tan

from actfit.fitting.activations.activation import Activation
from actfit.fitting.activations.calculus import sign_inside
from actfit.fitting.activations.functions import expm1, log1p, maximum, minimum, softplus, x
from actfit.fitting.activations.tape import Tape
from actfit.fitting.invact.branches import Arc
from actfit.fitting.invact.variable import Y

OfValue = Callable[[Expr, int], Expr]


def _circle(v: Expr, sign: int) -> Expr:
    return sign * _power(1 - v, Rational(1, 2)) * _power(1 + v, Rational(1, 2))


def _hypotenuse(v: Expr) -> Expr:
    """sqrt(1 + v²) without the overflow of v²."""
    long = maximum(Abs(v), Integer(1))
    return long * sqrt(1 + (minimum(Abs(v), Integer(1)) / long) ** 2)


# h' and h⁻¹ as functions of v, the value of h, and of the sign of h' on the arc. Differences such as 1 - v are exact
# where they cancel. A v that rounding has put just outside of its range gives an error of that rounding's size, so only
# arguments of roots are clamped.
FUNCTIONS: dict[str, tuple[OfValue, OfValue | None]] = {
    "sigmoid": (lambda v, _: v * (1 - v), lambda v, _: log(v / (1 - v))),
    "tanh": (lambda v, _: (1 - v) * (1 + v), lambda v, _: log((1 + v) / (1 - v)) / 2),
    "softplus": (lambda v, _: -expm1(-v), lambda v, _: log(expm1(v))),
    "softsign": (lambda v, _: (1 - Abs(v)) ** 2, lambda v, _: v / (1 - Abs(v))),
    "expm1": (lambda v, _: v + 1, lambda v, _: log1p(v)),
    "log1p": (lambda v, _: exp(-v), lambda v, _: expm1(v)),
    "exp": (lambda v, _: v, lambda v, _: log(v)),
    "log": (lambda v, _: exp(-v), lambda v, _: exp(v)),
    "atan": (lambda v, _: cos(v) ** 2, lambda v, _: tan(v)),
    "sinh": (lambda v, _: _hypotenuse(v), None),
    "cosh": (lambda v, sign: sign * _power(v - 1, Rational(1, 2)) * sqrt(v + 1), None),
    "sech": (lambda v, sign: v * _circle(v, sign), None),
    "sin": (_circle, None),
    "cos": (_circle, None),
    "tan": (lambda v, _: 1 + v**2, None),
}


def arc_form(activation: Activation, arc: Arc) -> Expr | None:
    """g on one arc as an expression in `Y`; None where the rules do not apply."""
    if arc.direction == 0:
        return Integer(0)
    whole = activation.f_expression
    # An expression with cases is resolved piece by piece. Softsign has none: taken whole, its arcs join to one.
    expression = arc.piece.f.expression if whole.has(Piecewise, Abs, sympy.sign) else whole
    derivative = _derivative(_named(expression), Y, arc)
    return None if derivative is None else _monic(derivative)


def _named(expression: Expr) -> Expr:
    """Softplus by its name: by the rules of log and exp, exp(-v)·expm1(v) would overflow."""
    u = Wild("u")
    return expression.replace(log(1 + exp(u)), softplus(u)).replace(log1p(exp(u)), softplus(u))


def _derivative(expression: Expr, v: Expr, arc: Arc) -> Expr | None:
    """The derivative of `expression` by x on the arc, in terms of `v`, the value of `expression`."""
    if expression == x:
        return Integer(1)
    if expression.is_Add:
        constant, varying = expression.as_independent(x, as_Add=True)
        return _derivative(varying, v - constant, arc) if constant != 0 else _rational(expression, v, arc)
    if expression.is_Mul:
        constant, varying = expression.as_independent(x, as_Add=False)
        if constant == 1:
            return _rational(expression, v, arc)
        inner = _derivative(varying, sympy.expand_mul(v / constant), arc)
        return None if inner is None else constant * inner
    if expression.is_Pow:
        return _derivative_of_power(expression, v, arc)
    name = type(expression).__name__
    if name not in FUNCTIONS:
        return None
    derivative, inverse = FUNCTIONS[name]
    sign = sign_inside(Tape(expression.fdiff(1)), arc.lo, arc.hi)
    return _chain(derivative(v, sign), expression.args[0], inverse(v, sign) if inverse else None, arc)


def _derivative_of_power(expression: Expr, v: Expr, arc: Arc) -> Expr | None:
    base, n = expression.args
    if n.has(x):
        return None if base.has(x) else _chain(log(base) * v, n, log(v) / log(base), arc)
    if n == -1 and (derivative := _rational(expression, v, arc)) is not None:
        return derivative
    sign = sign_inside(Tape(base), arc.lo, arc.hi)
    if n.is_odd:
        derivative, inverse = n * _power(v, (n - 1) / n, Abs), sign * _power(v, 1 / n, Abs)
    else:
        derivative, inverse = n * sign * _power(v, (n - 1) / n), sign * _power(v, 1 / n)
    return _chain(derivative, base, inverse, arc)


def _chain(outer: Expr, argument: Expr, value: Expr | None, arc: Arc) -> Expr | None:
    """outer·(argument)', given the argument's `value`; None if that is unknown and the argument is not affine."""
    unknown = Dummy(real=True)
    inner = _derivative(argument, unknown if value is None else value, arc)
    return None if inner is None or inner.has(unknown) else outer * inner


def _rational(expression: Expr, v: Expr, arc: Arc) -> Expr | None:
    """`_derivative` of a quotient of linear functions, or of a quadratic one, of x or of one function of x."""
    generators = _generators(expression)
    if len(generators) != 1:
        return None
    (h,) = generators
    t = Dummy(real=True)
    above, below = (Poly(part, t) for part in sympy.fraction(sympy.together(expression.xreplace({h: t}))))
    if (above.degree(), below.degree()) == (2, 0):
        a, b, c = (coefficient / below.as_expr() for coefficient in above.all_coeffs())
        sign = sign_inside(Tape(2 * a * h + b), arc.lo, arc.hi)
        # 4a(v - turn), not b² - 4a(c - v): the difference is exact next to the turn, where g is most sensitive.
        root = sign * _power(sympy.expand_mul(4 * a * (v - c + b**2 / (4 * a))), Rational(1, 2))
        return _chain(root, h, (root - b) / (2 * a), arc)
    if max(above.degree(), below.degree()) == 1:
        (a, b), (c, d) = ((part.coeff_monomial(t), part.coeff_monomial(1)) for part in (above, below))
        if a * d == b * c:
            return None
        pole = sympy.expand_mul(a - c * v)
        return _chain(pole**2 / (a * d - b * c), h, sympy.expand_mul(d * v - b) / pole, arc)
    return None


def _generators(expression: Expr) -> set[Expr]:
    """The outermost parts with x of which `expression` is a rational function."""
    if not expression.has(x):
        return set()
    if expression.is_Add or expression.is_Mul:
        return set().union(*map(_generators, expression.args))
    if expression.is_Pow and expression.args[1].is_Integer:
        return _generators(expression.args[0])
    return {expression}


def _linear(expression: Expr) -> tuple[Expr, Expr] | None:
    """(k, m) of k·Y + m with k != 0."""
    k = expression.coeff(Y)
    m = expression - k * Y
    return None if k == 0 or k.has(Y) or m.has(Y) else (k, m)


def _power(base: Expr, exponent: Expr, positive: Callable[[Expr], Expr] = lambda v: maximum(v, Integer(0))) -> Expr:
    """base**exponent, also where rounding has made the base negative: 0**exponent."""
    if exponent.is_Integer:
        return base**exponent
    linear = _linear(base)
    if linear is None:
        return positive(sympy.factor(base) if base.is_polynomial(Y) else base) ** exponent
    scale = abs(linear[0])
    return scale**exponent * positive(linear[0] / scale * Y + linear[1] / scale) ** exponent


def _monic(expression: Expr) -> Expr:
    """The same product with factors 1·Y + m or m - 1·Y: with the numbers outside, differences of Y and m are exact."""
    factors: list[Expr] = []
    for factor in Mul.make_args(expression):
        base, exponent = factor.as_base_exp()
        linear = _linear(base) if base.is_Add and exponent.is_Integer else None
        if linear:
            scale = abs(linear[0])
            factors += [scale**exponent, (linear[0] / scale * Y + linear[1] / scale) ** exponent]
        else:
            factors.append(factor)
    return Mul(*factors)
