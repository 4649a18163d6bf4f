"""The one judge: f, f' and f'∘f⁻¹ at 50 digits, by mpmath, and integrals by arb.

Slow and sure. Fits, printed formulas and kernels are all compared with this and nothing else.
"""

import math
from typing import Any

import mpmath

from fitting.activations.activation import Activation, Branch
from fitting.activations.calculus import Piece
from fitting.activations.tape import Tape
from fitting.errors import InputError

DIGITS = 50
_GUARD = 15  # digits lost to cancellation, as in Phi(x) + x phi(x) near its zero


def f(activation: Activation, at: Any) -> Any:
    """f at one point (float, int, str or mpf) as an mpf of 50 digits; the limit at ±inf."""
    limits = activation.limits
    return _evaluate(Tape(activation.f_expression), (limits.left, limits.right), at)


def df(activation: Activation, at: Any) -> Any:
    """f' at one point as an mpf of 50 digits; the limit at ±inf."""
    limits = activation.derivative_limits
    return _evaluate(Tape(activation.d1_expression), (limits.left, limits.right), at)


def _evaluate(tape: Tape, limits: tuple[float, float], at: Any) -> Any:
    with mpmath.workdps(DIGITS + _GUARD):
        point = mpmath.mpf(at)
        if mpmath.isinf(point):
            return mpmath.mpf(limits[point > 0])
        result = tape.mp(point)
    with mpmath.workdps(DIGITS):
        return +result


def inverse(activation: Activation, y: Any, branch: Branch) -> Any:
    """The x of a strictly monotone `branch` with f(x) = y, as an mpf of 50 digits.

    Raises `InputError` where the branch does not reach y (including where f jumps over it).
    """
    if branch.direction == 0:
        raise InputError(f"branch ({branch.lo:g}, {branch.hi:g}) of {activation.name} is constant: it has no inverse")
    tape = Tape(activation.f_expression)
    with mpmath.workdps(DIGITS + _GUARD):
        target = mpmath.mpf(y)
        lo, hi = _bracket(tape, target, branch)
        while hi - lo > mpmath.eps * max(abs(lo), abs(hi), mpmath.mpf(10) ** -DIGITS):
            mid = (lo + hi) / 2
            below = tape.mp(mid) < target
            lo, hi = (mid, hi) if below == (branch.direction > 0) else (lo, mid)
        root = (lo + hi) / 2
        if abs(tape.mp(root) - target) > mpmath.mpf(10) ** (-DIGITS + 5) * max(1, abs(target)):
            raise InputError(f"y must lie in the range of the branch, got {mpmath.nstr(target, 17)}")
    with mpmath.workdps(DIGITS):
        return +root


def _bracket(tape: Tape, target: Any, branch: Branch) -> tuple[Any, Any]:
    """Finite ends of `branch` between which f passes `target`: infinite ones grow until it does."""
    ends = []
    for end, other in ((branch.lo, branch.hi), (branch.hi, branch.lo)):
        point = mpmath.mpf(end)
        if math.isinf(end):
            base = mpmath.mpf(0 if math.isinf(other) else other)
            beyond = 1 if (end > 0) == (branch.direction > 0) else -1
            step = mpmath.mpf(1)
            while beyond * (tape.mp(base + math.copysign(1, end) * step) - target) < 0 and step < mpmath.mpf(10) ** 60:
                step *= 2
            point = base + math.copysign(1, end) * step
        ends.append(point)
    return ends[0], ends[1]


def df_of_output(activation: Activation, y: Any, branch: Branch) -> Any:
    """g(y) = f'(f⁻¹(y)) on a monotone `branch`, as an mpf of about 50 digits (fewer next to f' = 0)."""
    return df(activation, inverse(activation, y, branch))


def piece_at(activation: Activation, at: float) -> Piece:
    """The smooth piece that holds the open neighbourhood left of `at` (right of it for -inf)."""
    return next(piece for piece in activation.pieces if at <= piece.hi)
