"""Properties of an expression: its breakpoints, smooth pieces, sign changes and limits.

Signs and limits are decided in ball arithmetic (arb), never by a float that may have underflowed.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import sympy
from sympy import Expr, Integer, Piecewise
from sympy.core.relational import Relational

from actfit.fitting.activations.balls import flint
from actfit.fitting.activations.functions import softsign, x
from actfit.fitting.activations.tape import Array, Tape

SCAN_RANGE = 1e4  # beyond it an activation is its asymptote: none has structure on such a scale
SCAN_POINTS = 4001
PRECISION = 200  # bits: 50 digits, and some to lose to rounding
SPARE = 20  # of them: a relative step below 2**(SPARE - PRECISION) is rounding
HALVINGS = 20
SECANTS = 12  # each multiplies the number of digits by about 1.6: from 20 bits, 9 of them give 200


@dataclass(frozen=True)
class Piece:
    """An open interval on which `f`, `f'` and `f''` are smooth, each as a tape free of conditions."""

    lo: float
    hi: float
    f: Tape
    d1: Tape
    d2: Tape

    @property
    def middle(self) -> float:
        return middle(self.lo, self.hi)


def middle(lo: float, hi: float) -> float:
    """Some point well inside (lo, hi), either end of which may be infinite."""
    if math.isinf(lo) and math.isinf(hi):
        return 0.0
    if math.isinf(lo) or math.isinf(hi):
        return hi - 1.0 if math.isinf(lo) else lo + 1.0
    return lo + (hi - lo) / 2


def breakpoints(expression: Expr) -> list[float]:
    """Where a condition, an absolute value or a sign inside `expression` switches, in increasing order."""
    switches = {relation.lhs - relation.rhs for relation in expression.atoms(Relational)}
    switches |= {node.args[0] for node in expression.atoms(sympy.Abs, sympy.sign, softsign)}
    points: set[float] = set()
    for switch in switches:
        slope = switch.diff(x)
        if slope.is_number:
            points |= {float(-switch.subs(x, 0) / slope)} if slope != 0 else set()
        else:
            points |= {float(root) for root in sign_changes(Tape(switch), -math.inf, math.inf)}
    return sorted(point + 0.0 for point in points)  # + 0.0 turns -0.0 into 0.0


def pieces(f: Expr, d1: Expr) -> list[Piece]:
    """The smooth pieces of f and its derivative over the whole line."""
    edges = [-math.inf, *breakpoints(f), math.inf]
    smooth_pieces = []
    for lo, hi in pairwise(edges):
        inside = _off_ties(f, lo, hi)
        smooth = resolve(d1, inside)
        smooth_pieces.append(Piece(lo, hi, Tape(resolve(f, inside)), Tape(smooth), Tape(smooth.diff(x))))
    return smooth_pieces


def _off_ties(f: Expr, lo: float, hi: float) -> float:
    """A point of (lo, hi) at which no condition of f is a tie. max(exp(x), x + 1) has a tie at 0, but no switch."""
    ties = [Tape(relation.lhs - relation.rhs) for relation in f.atoms(Relational)]
    base, span = middle(lo, hi), min(hi - lo, 2.0)
    points = [base + span * offset for offset in (0.0, 0.1, 0.2, -0.1, 0.3)]
    return next((point for point in points if all(sign_at(tie, point) for tie in ties)), base)


def resolve(expression: Expr, point: float) -> Expr:
    """`expression` with every condition, absolute value and sign replaced by its value around `point`."""
    if not expression.args:
        return expression
    if isinstance(expression, Piecewise):
        holds = (value for value, condition in expression.args if Tape(condition).arb(flint.arb(point)))
        return resolve(next(holds), point)
    if isinstance(expression, softsign):
        u = expression.args[0]
        return resolve(u / (1 + sympy.Abs(u)), point)
    if isinstance(expression, sympy.Abs | sympy.sign):
        positive = Tape(expression.args[0]).arb(flint.arb(point)) > 0
        sign = Integer(1 if positive else -1)
        return sign * resolve(expression.args[0], point) if isinstance(expression, sympy.Abs) else sign
    return expression.func(*(resolve(argument, point) for argument in expression.args))


def values(tape: Tape, points: Array) -> Array:
    """Float64 values; where float64 overflows on the way (inf/inf, 0·inf) the value comes from arb."""
    result, overflow = tape.numpy_checked(points)
    for i in zip(*np.nonzero(overflow & np.isfinite(points)), strict=True):
        with flint.ctx.workprec(PRECISION):
            ball = tape.arb(flint.arb(float(points[i])))
        result[i] = float(ball) if ball.is_finite() else result[i] if math.isfinite(result[i]) else math.nan
    return result


def sign_at(tape: Tape, point: Any) -> int:
    """-1, 0 or 1; 0 when the value is zero or too close to it for `PRECISION` bits to tell."""
    with flint.ctx.workprec(PRECISION):
        ball = tape.arb(flint.arb(point))
    return 1 if ball > 0 else -1 if ball < 0 else 0


def sign_inside(tape: Tape, lo: float, hi: float) -> int:
    """The sign on (lo, hi), where it does not change; a point where the value happens to be 0 is passed over."""
    span = min(hi - lo, 2.0)
    points = (middle(lo, hi) + span * offset for offset in (0.0, 0.1, 0.2, -0.1))
    return next((sign for point in points if (sign := sign_at(tape, point))), 0)


def sign_changes(tape: Tape, lo: float, hi: float) -> list[Any]:
    """Where a function, continuous on (lo, hi), changes sign: midpoints of balls, to about 50 digits.

    Brackets come from a scan whose points lie 0.002 apart near 0 and 0.5 % of |x| apart far out, out to
    `SCAN_RANGE`; two roots closer than that are missed. Nothing rigorous rests on this list.
    """
    lo, hi = max(lo, -SCAN_RANGE), min(hi, SCAN_RANGE)
    if not lo < hi:
        return []
    scan = np.sinh(np.linspace(np.arcsinh(2 * lo), np.arcsinh(2 * hi), SCAN_POINTS)) / 2
    inset = 1e-12 * (hi - lo)  # a root may lie nearer to an end than the scan's first point
    scan = np.unique([lo + inset, *scan, hi - inset])
    scan = scan[(lo < scan) & (scan < hi)]
    heights = values(tape, scan)
    signs = np.sign(np.nan_to_num(heights, nan=0.0))
    for i in np.flatnonzero(heights == 0):  # or too small for float64: all of tanh(1e8*x)'' but its turn
        signs[i] = sign_at(tape, float(scan[i]))
    scan, signs = scan[signs != 0], signs[signs != 0]
    roots = []
    for i in np.flatnonzero(signs[1:] != signs[:-1]):
        a, b = float(scan[i]), float(scan[i + 1])
        if sign_at(tape, a) * sign_at(tape, b) < 0:
            roots.append(bisect(tape, a, b))
    return roots


def bisect(tape: Tape, a: float, b: float) -> Any:
    """The root in (a, b), where the signs at the ends differ, as an exact `arb` good to ~50 digits.

    Halving says which root; once its bracket is narrow, secants give the digits in a tenth of the steps.
    """
    with flint.ctx.workprec(PRECISION):
        sign = sign_at(tape, a)
        left, right = _halved(tape, flint.arb(a), flint.arb(b), sign, HALVINGS)
        mid = _by_secants(tape, left, right, sign)
        if mid is None:
            left, right = _halved(tape, left, right, sign, PRECISION - HALVINGS)
            mid = (left + right).mid() / 2
        return mid if abs(mid) > 1e-50 else flint.arb(0)


def _halved(tape: Tape, left: Any, right: Any, sign: int, times: int) -> tuple[Any, Any]:
    """The bracket after `times` halvings, or one point at which the sign is 0 or cannot be told."""
    for _ in range(times):
        mid = (left + right).mid() / 2
        here = sign_at(tape, mid)
        if here == 0:
            return mid, mid
        left, right = (mid, right) if here == sign else (left, mid)
    return left, right


def _by_secants(tape: Tape, left: Any, right: Any, sign: int) -> Any | None:
    """The root in the bracket; None unless the signs on both sides close to it are proven to differ."""
    before, root = left, right
    value, height = tape.arb(before), tape.arb(root)
    for _ in range(SECANTS):
        step = (root - height * (root - before) / (height - value)).mid()
        if not left <= step <= right:  # NaN too
            return None
        settled = abs(step - root) <= abs(step) * flint.arb(2) ** (SPARE - PRECISION)
        before, root, value, height = root, step, height, tape.arb(step)
        if settled or height.contains(0):
            break
    else:
        return None
    reach = (right - left) * flint.arb(2) ** -(PRECISION // 2)
    proven = sign_at(tape, (root - reach).mid()) == sign == -sign_at(tape, (root + reach).mid())
    return root if proven else None


def limit(tape: Tape, toward: float) -> float:
    """The limit at +inf or -inf (`toward`); NaN where there is none, as for a sine.

    Decided from enclosures at growing |x| up to 1e40, as far as they stay meaningful against the size of the
    values near 1: a limit approached more slowly than a power of x, such as that of 1/log(x), is not found.
    """
    with flint.ctx.workprec(PRECISION):
        near = [tape.arb(flint.arb(at) * int(math.copysign(1, toward))) for at in (1, 2, 4)]
        scale = max((abs(ball.mid()) for ball in near if ball.is_finite()), default=flint.arb(1))
        balls = [tape.arb(flint.arb(10) ** power * int(math.copysign(1, toward))) for power in range(8, 41, 2)]
        known = [ball.mid() for ball in balls if ball.is_finite() and ball.rad() <= 1e-15 * (scale + abs(ball.mid()))]
        if len(known) < 3:
            return math.nan
        before, last = known[-2:]
        if all(abs(a) * 1.5 < abs(b) and a * b > 0 for a, b in pairwise(known)) and abs(last) > 1000 * scale:
            return math.copysign(math.inf, 1 if last > 0 else -1)
        if abs(before - last) <= 1e-15 * (scale + abs(last)):
            return 0.0 if abs(last) <= 1e-15 * scale else float(last)
        return math.nan
