"""Two more number systems of a tape, for proofs about formulas: power series over balls, and balls at the edge.

SERIES has `flint.arb_series`: coefficient k of a value computed from ball + d holds f⁽ᵏ⁾/k! at every point of the
ball, since each operation is the Taylor recurrence of that function in ball arithmetic; where the ball is all that a
Lagrange remainder asks about, this is the remainder. HULL is ARB with conditions that may be undecided. ROOTS is HULL
for an expression that takes roots only of numbers known to be at least 0: it cuts the part of a ball below 0 off.

None raises: where a value is not analytic (SERIES) or not known to be real and finite (HULL, ROOTS), it is not finite.
"""

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

from actfit.fitting.activations.arithmetics import ARB, Arithmetic
from actfit.fitting.activations.balls import flint


def _nan() -> Any:
    return flint.arb("nan")  # not a constant: flint may not be installed


# A condition is True or False where it is so on all of the ball, None where it may be either.
Verdict = bool | None


def leading(u: Any) -> Any:
    """The constant coefficient of a series, or the ball itself."""
    return u[0] if isinstance(u, flint.arb_series) else u


def _sign(u: Any) -> int:
    """1 or -1 where u has that sign on all of the ball, otherwise 0."""
    ball = leading(u)
    return 1 if ball > 0 else -1 if ball < 0 else 0


def _either_sign(positive: Callable[[Any], Any], negative: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An analytic function by two spellings, each for the half line on which it does not overflow or cancel."""
    return lambda u: positive(u) if leading(u).mid() >= 0 else negative(u)


def _by_sign(positive: Callable[[Any], Any], negative: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that is analytic on each side of 0 only."""
    return lambda u: positive(u) if (sign := _sign(u)) > 0 else negative(u) if sign else _nan()


def _quotient(a: Any, b: Any) -> Any:
    # flint raises where the divisor's ball holds 0.
    return a / b if _sign(b) else _nan()


def _whole_power(base: Any, exponent: int) -> Any:
    # flint's own is NaN where the ball holds 0.
    if exponent < 0:
        return _quotient(flint.arb(1), _whole_power(base, -exponent))
    power = flint.arb(1)
    for bit in bin(exponent)[2:]:
        power = power * power
        power = power * base if bit == "1" else power
    return power


def _series_power(base: Any, exponent: Any) -> Any:
    if isinstance(exponent, int):
        return _whole_power(base, exponent)
    if isinstance(exponent, flint.arb) and exponent == 0.5:
        return base.sqrt()
    return (base.log() * exponent).exp()


def _tanh_of_positive(u: Any) -> Any:
    t = (-2 * u).exp()
    return _quotient(1 - t, 1 + t)


def _sech_of_positive(u: Any) -> Any:
    t = (-u).exp()
    return _quotient(2 * t, 1 + t * t)


def _sigmoid_of_negative(u: Any) -> Any:
    t = u.exp()
    return _quotient(t, 1 + t)


def _extreme(sign: int) -> Callable[[Any, Any], Any]:
    """The larger (1) or smaller (-1) of two values; NaN where it is not the same value on all of the ball."""

    def extreme(a: Any, b: Any) -> Any:
        order = _sign(leading(a) - leading(b)) * sign
        return a if order > 0 else b if order < 0 else _nan()

    return extreme


def _compare(holds: Callable[..., bool], fails: Callable[..., bool]) -> Callable[[Any, Any], Verdict]:
    def verdict(a: Any, b: Any) -> Verdict:
        u, v = leading(a), leading(b)
        return True if holds(u, v) else False if fails(u, v) else None

    return verdict


def _all(*verdicts: Verdict) -> Verdict:
    return False if False in verdicts else None if None in verdicts else True


def _any(*verdicts: Verdict) -> Verdict:
    return True if True in verdicts else None if None in verdicts else False


_CONDITIONS: dict[str, Callable[..., Any]] = {
    "StrictLessThan": _compare(operator.lt, operator.ge),
    "LessThan": _compare(operator.le, operator.gt),
    "StrictGreaterThan": _compare(operator.gt, operator.le),
    "GreaterThan": _compare(operator.ge, operator.lt),
    "And": _all,
    "Or": _any,
    "Not": lambda verdict: None if verdict is None else not verdict,
}


def _possible(*branches: tuple[Any, Verdict]) -> list[Any]:
    """The values that a Piecewise may take: up to its first condition that surely holds, if not surely false."""
    values = []
    for value, verdict in branches:
        if verdict is not False:
            values.append(value)
        if verdict:
            break
    return values


def _only(*branches: tuple[Any, Verdict]) -> Any:
    values = _possible(*branches)
    return values[0] if len(values) == 1 else _nan()


def _union(*branches: tuple[Any, Verdict]) -> Any:
    return reduce(lambda a, b: a.union(b), _possible(*branches) or [_nan()])


def _clipped_power(base: Any, exponent: Any) -> Any:
    """As ARB's power; a root is taken of the part of the ball that is not negative."""
    if isinstance(exponent, int):
        return _whole_power(base, exponent) if exponent < 0 else ARB.power(base, exponent)
    if not base.is_finite() or base > 0 or not exponent > 0:
        return base**exponent
    upper = base.upper()
    return flint.arb(0).union(upper**exponent) if upper > 0 else flint.arb(0) if upper == 0 else _nan()


def _method(name: str) -> Callable[[Any], Any]:
    return lambda u: getattr(u, name)()


_SERIES_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    **{name: _method(name) for name in ("exp", "log", "sin", "cos", "tan", "atan", "erf", "erfc")},
    "expm1": lambda u: u.exp() - 1,
    "log1p": lambda u: (1 + u).log(),
    "sinh": lambda u: (u.exp() - (-u).exp()) / 2,
    "cosh": lambda u: (u.exp() + (-u).exp()) / 2,
    "tanh": _either_sign(_tanh_of_positive, lambda u: -_tanh_of_positive(-u)),
    "sech": _either_sign(_sech_of_positive, lambda u: _sech_of_positive(-u)),
    "sigmoid": _either_sign(lambda u: _quotient(flint.arb(1), 1 + (-u).exp()), _sigmoid_of_negative),
    "softplus": _either_sign(lambda u: u + (1 + (-u).exp()).log(), lambda u: (1 + u.exp()).log()),
    "Phi": lambda u: (-u / flint.arb(2).sqrt()).erfc() / 2,
    "phi": lambda u: (-u * u / 2).exp() / (2 * flint.arb.pi()).sqrt(),
    "softsign": _by_sign(lambda u: _quotient(u, 1 + u), lambda u: _quotient(u, 1 - u)),
    "Abs": _by_sign(lambda u: u, lambda u: -u),
    "sign": _by_sign(lambda _: flint.arb(1), lambda _: flint.arb(-1)),
}


def _series_function(name: str) -> Callable[[Any], Any]:
    series, ball = _SERIES_FUNCTIONS[name], ARB.functions[name]
    return lambda u: series(u) if isinstance(u, flint.arb_series) else ball(u)


SERIES = Arithmetic(
    "series",
    constant=ARB.constant,
    functions={
        **{name: _series_function(name) for name in _SERIES_FUNCTIONS},
        "maximum": _extreme(1),
        "minimum": _extreme(-1),
        **_CONDITIONS,
    },
    power=_series_power,
    select=_only,
)

HULL = replace(ARB, name="hull", functions={**ARB.functions, **_CONDITIONS}, select=_union)
ROOTS = replace(HULL, name="roots", power=_clipped_power)
