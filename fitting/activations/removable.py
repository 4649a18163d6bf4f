"""Values of quotients such as sin(x)/x also where both parts are 0, in every arithmetic.

With t = x - a, above = t**M * n(x) and base = t**m * d(x), and the quotient is n/d**k. By the integral form of Taylor's
remainder n(x) is a mean of above⁽ᴹ⁾/M! over the points between a and x. So a ball that holds it on the hull of a and x
holds n(x), and likewise coefficient j of n about x is a mean of above⁽ᴹ⁺ʲ⁾/(M + j)!: exact enclosures, without a
division by 0. Away from a the plain quotient is better; of two enclosures the narrower is taken.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
from sympy import Expr

from actfit.fitting.activations.arithmetics import Arithmetic
from actfit.fitting.activations.balls import flint
from actfit.fitting.activations.enclosures import SERIES
from actfit.fitting.activations.functions import removable, x

TERMS = 26  # of the polynomial next to the point: with NEAREST to the TERMSth power left out, below float64's eps
NEAREST = 1 / 4  # of the radius of convergence
WIDE = 0.5  # a larger radius is used only where `_wide` allows it
_FLOAT32 = -126 * math.log(2)  # the log of float32's smallest normal number
FAR = 1.0  # from the point, where the plain quotient is narrow enough
_BITS = 400
Run = Callable[[Expr, Arithmetic, Any], Any]


def value_of(node: removable, arithmetic: Arithmetic, value: Any, run: Run) -> Any:
    """The value of `node` where x is `value`; `run` gives that of a plain expression."""
    if arithmetic.name.startswith("numpy"):
        return _floats(node, arithmetic, value, run)
    if isinstance(value, flint.arb_series):
        return _narrower_series(_direct(node, arithmetic, value, run), _series(node, value[0], value.prec, run), value)
    if isinstance(value, flint.arb | flint.acb):
        plain = _direct(node, arithmetic, value, run)
        if plain.is_finite() and abs(value - arithmetic.constant(node.args[3])).lower() > FAR:
            return plain
        return _narrower(plain, _by_mean(node, arithmetic, value, run))
    return _digits(node, arithmetic, value, run)


def _direct(node: removable, arithmetic: Arithmetic, value: Any, run: Run) -> Any:
    above, base = (run(part, arithmetic, value) for part in node.args[:2])
    return above * arithmetic.power(base, -int(node.args[2]))


def _by_mean(node: removable, arithmetic: Arithmetic, ball: Any, run: Run) -> Any:
    above, base, power, point, order = node.args
    a = arithmetic.constant(point)
    hull = ball.union(a)
    parts = [
        run(_derivative(part, count), arithmetic, hull) / math.factorial(count)
        for part, count in ((above, int(power * order)), (base, int(order)))
    ]
    return parts[0] * arithmetic.power(parts[1], -int(power))


@lru_cache(maxsize=1024)
def _derivative(expression: Expr, count: int) -> Expr:
    return expression.diff(x, count) if count else expression


def _narrower(first: Any, second: Any) -> Any:
    if not (first.is_finite() and second.is_finite()):
        return first if first.is_finite() else second
    return first if first.rad() <= second.rad() else second


def _series(node: removable, ball: Any, length: int, run: Run) -> Any:
    """Coefficients about the points of a ball, from those over the hull of it and the point."""
    above, base, power, point, order = node.args
    hull = ball.union(SERIES.constant(point))
    before = flint.ctx.cap
    flint.ctx.cap = length + int(power * order)
    try:
        parts = [
            _shifted(run(part, SERIES, flint.arb_series([hull, 1], length + shift)), shift, length)
            for part, shift in ((above, int(power * order)), (base, int(order)))
        ]
        whole = parts[0] * SERIES.power(parts[1], -int(power))
        if not whole[0].is_finite():  # a NaN times a short series is short, and its missing coefficients read as 0
            return flint.arb_series([flint.arb("nan")] * length, length)
        return flint.arb_series(list(whole), length)
    finally:
        flint.ctx.cap = before


def _shifted(series: Any, shift: int, length: int) -> Any:
    if not isinstance(series, flint.arb_series):  # a constant
        series = flint.arb_series([series])
    if not series[0].is_finite():  # not analytic; the first coefficient, which says so, is shifted out below
        return flint.arb_series([flint.arb("nan")] * length, length)
    return flint.arb_series([series[k] for k in range(shift, shift + length)], length)


def _narrower_series(direct: Any, by_mean: Any, value: Any) -> Any:
    length = value.prec
    if not (value[1] == 1 and isinstance(by_mean, flint.arb_series)):
        return direct
    if not isinstance(direct, flint.arb_series) or not direct[0].is_finite():  # as in `_series`
        return by_mean
    if not by_mean[0].is_finite():
        return direct
    return flint.arb_series([_narrower(direct[k], by_mean[k]) for k in range(length)], length)


def _digits(node: removable, arithmetic: Arithmetic, at: Any, run: Run) -> Any:
    """By mpmath, with as many digits more as cancel in the quotient."""
    above, base, power, point, order = node.args
    lost = int(power * order)
    near = at - arithmetic.constant(point)
    if near == 0:
        top = run(_derivative(above, lost), arithmetic, at) / math.factorial(lost)
        return top / (run(_derivative(base, int(order)), arithmetic, at) / math.factorial(int(order))) ** int(power)
    with mpmath.workprec(mpmath.mp.prec + 10 + lost * max(0, -int(mpmath.mag(near)))):
        result = _direct(node, arithmetic, at, run)
    return +result


@dataclass(frozen=True)
class Near:
    """A polynomial in x - point that equals the quotient, to float64's precision, for |x - point| < radius."""

    point: float
    radius: float
    coefficients: tuple[float, ...]


@lru_cache(maxsize=256)
def near(node: removable, run: Run) -> Near:
    """The polynomial of `node` near its point."""
    with flint.ctx.workprec(_BITS):
        series = _series(node, SERIES.constant(node.args[3]), TERMS, run)
        coefficients = [0.0 if series[k].contains(0) else float(series[k].mid()) for k in range(TERMS)]
        logs = {k: float(abs(series[k].mid()).log()) for k in range(TERMS) if not series[k].contains(0)}
    radius = min([math.log(WIDE), *(math.log(NEAREST) - log / k for k, log in logs.items() if k >= TERMS // 2)])
    if radius == math.log(WIDE):
        radius = max(radius, _wide(logs))
    return Near(float(node.args[3]), math.exp(radius), tuple(coefficients))


def _wide(logs: dict[int, float]) -> float:
    """The log of a radius within which the polynomial is accurate relative to its first term, by logs of coefficients.

    There the terms left out are small, no term is above the first, and terms that float32 cannot hold do not matter.
    """
    first = min(logs, default=0)
    log_radii = []
    for k, log in logs.items():
        if k > first:
            less = math.log(NEAREST) * (k - first) if k >= TERMS // 2 else 0.0
            less = min(less, math.log(2) * -26) if log < _FLOAT32 else less
            log_radii.append((less + logs[first] - log) / (k - first))
    return min([*log_radii, 69.0]) if len(log_radii) > 1 else -math.inf  # 1e30, whose square is a float32's no more


def _floats(node: removable, arithmetic: Arithmetic, at: Any, run: Run) -> Any:
    value = np.asarray(at)
    above, base = (run(part, arithmetic, value) for part in node.args[:2])
    under = arithmetic.power(base, int(node.args[2]))
    far = np.where(
        np.isfinite(under) & np.isfinite(above), above / under, np.nan
    )  # of n/inf more may be said elsewhere
    close = near(node, run)
    t = value - value.dtype.type(close.point)
    polynomial = np.polynomial.polynomial.polyval(t, np.asarray(close.coefficients, dtype=value.dtype))
    return np.where(np.abs(t) < close.radius, polynomial, far)
