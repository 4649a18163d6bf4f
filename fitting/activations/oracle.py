"""The reference for all tests: f, f' and f'∘f⁻¹ at 50 digits, by mpmath.

Slow, but certain: fits, printed formulas and kernels are all compared with it.
"""

import math
from typing import Any

import mpmath

from actfit.fitting.activations.activation import Activation, Branch
from actfit.fitting.activations.balls import flint
from actfit.fitting.activations.tape import Tape
from actfit.fitting.errors import InputError

DIGITS = 50
_WORKING = 65  # digits to begin with
_MOST = 520  # digits at most: x - tanh(x) and 1 + tanh(x) need so many, down to 1e-470
_TINY = mpmath.mpf(10) ** -330  # below every float64, its inverse above


def f(activation: Activation, at: Any) -> Any:
    """f at one point (float, int, str or mpf) as an mpf of 50 digits; the limit at ±inf."""
    limits = activation.limits
    return _evaluate(Tape(activation.f_expression), (limits.left, limits.right), at)


def df(activation: Activation, at: Any) -> Any:
    """f' at one point as an mpf of 50 digits; the limit at ±inf."""
    limits = activation.derivative_limits
    return _evaluate(Tape(activation.d1_expression), (limits.left, limits.right), at)


def _evaluate(tape: Tape, limits: tuple[float, float], at: Any) -> Any:
    with mpmath.workdps(_WORKING):
        point = mpmath.mpf(at)
        result = mpmath.mpf(limits[point > 0]) if mpmath.isinf(point) else _exact(tape, point)
    with mpmath.workdps(DIGITS):
        return +result


def _exact(tape: Tape, point: Any) -> Any:
    """The value to `DIGITS` digits of its own size; an arb ball tells how many digits that takes on the way."""
    digits = _WORKING
    while digits < _MOST:
        with flint.ctx.workdps(digits):
            ball = tape.arb(flint.arb(point))
        if not ball.is_finite() or ball.rad() <= abs(ball.mid()) * 10.0 ** -(DIGITS + 5):
            break
        digits *= 2
    with mpmath.workdps(digits + 5):
        return tape.mp(point)


def inverse(activation: Activation, y: Any, branch: Branch) -> Any:
    """The x of a strictly monotone `branch` with f(x) = y, as an mpf of 50 digits.

    Raises `InputError` where the branch does not reach y: beyond its ends, at a limit that it only approaches,
    where f jumps over it.
    """
    if branch.direction == 0:
        raise InputError(f"branch ({branch.lo:g}, {branch.hi:g}) of {activation.name} is constant: it has no inverse")
    tape = Tape(activation.f_expression)
    with mpmath.workdps(_WORKING):
        target = mpmath.mpf(y)
        refusal = InputError(f"y must lie in the range of the branch, got {mpmath.nstr(target, 17)}")
        if not mpmath.isfinite(target):
            raise refusal
        lo, hi = (_end(tape, target, branch, side) for side in (-1, 1))
        if lo is None or hi is None:
            raise refusal
        while hi - lo > mpmath.eps * max(abs(lo), abs(hi), _TINY):
            mid = (lo + hi) / 2
            below = _exact(tape, mid) < target
            lo, hi = (mid, hi) if below == (branch.direction > 0) else (lo, mid)
        # f may jump at an end of the branch, or inside it.
        inside = lo if lo > branch.lo else hi
        if abs(_exact(tape, inside) - target) > mpmath.mpf(10) ** (-DIGITS + 5) * max(1, abs(target)):
            raise refusal
    with mpmath.workdps(DIGITS):
        return (lo + hi) / 2


def _end(tape: Tape, target: Any, branch: Branch, side: int) -> Any:
    """One end of a bracket: the branch's end or, if that is infinite, a point where f is past `target` (or None)."""
    end, other = (branch.hi, branch.lo) if side > 0 else (branch.lo, branch.hi)
    if math.isfinite(end):
        return mpmath.mpf(end)
    base, step = mpmath.mpf(0 if math.isinf(other) else other), mpmath.mpf(1)
    while side * branch.direction * (tape.mp(base + side * step) - target) <= 0:
        if step > 1 / _TINY:
            return None
        step *= 2
    return base + side * step


def df_of_output(activation: Activation, y: Any, branch: Branch) -> Any:
    """g(y) = f'(f⁻¹(y)) on a monotone `branch`, as an mpf of about 50 digits (fewer next to f' = 0)."""
    return df(activation, inverse(activation, y, branch))
