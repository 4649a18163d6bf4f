"""g(y) = f'(f⁻¹(y)) in float64, over arrays: a power series in s next to an anchor, Newton's method elsewhere."""

import math
from functools import lru_cache
from typing import Any

import flint
import numpy as np

from actfit.fitting.activations import calculus
from actfit.fitting.activations.calculus import PRECISION, Piece
from actfit.fitting.activations.tape import Array
from actfit.fitting.invact.branches import Anchor, Arc, Branch

TERMS = 48  # of a series; up to the radius below, the terms left out are under 1e-18
TABLE = 1200  # points between which a root is bracketed
STEPS = 100  # iterations of Newton and bisection: more than enough halvings for the widest bracket


def derivative_from_output(branch: Branch, y: Array) -> Array:
    """The exact g(y) = f'(f⁻¹(y)) on one branch.

    branch: of the activation f.
    y: outputs. For a y outside the branch's range (rounded below f(T), say) the result is g at the end of the
        range.
    Returns float64 array of the shape of y: g, to a few units of the last place of max(1, |g|); NaN for NaN.
    """
    y = np.asarray(y, dtype=np.float64)
    unclipped = y.ravel()
    flat = np.clip(unclipped, *branch.range)
    result = np.full(flat.shape, math.nan)
    for arc in branch.arcs:
        lo, hi = arc.range
        inside = (lo <= flat) & (flat <= hi)
        # Where arcs meet, a flat arc decides; of two sloping arcs the first one, until `kinks` overrules it.
        inside &= np.isnan(result) | (arc.direction == 0)
        result[inside] = _on_arc(arc, flat[inside], unclipped[inside])
    for at, derivative in branch.kinks:
        result[flat == at] = derivative
    gap = np.isnan(result) & ~np.isnan(flat)  # f jumps over these y: take g at the nearest y that it has
    if gap.any():
        ends = np.array(sorted({end for arc in branch.arcs for end in arc.range}))
        nearest = ends[np.argmin(np.abs(flat[gap, None] - ends), axis=1)]
        result[gap] = derivative_from_output(branch, nearest)
    return result.reshape(y.shape)


def _on_arc(arc: Arc, y: Array, unclipped: Array) -> Array:
    """g at `y`, clipped to the arc's range; s is measured from `unclipped`, so that it is 0 below f(T)."""
    if arc.direction == 0:
        return np.zeros_like(y)
    result, todo = np.empty_like(y), np.ones(y.shape, dtype=np.bool_)
    for end, anchor in enumerate(arc.anchors):
        if anchor is not None:
            s = anchored(arc, anchor, unclipped)
            coefficients, radius = series(arc, end)
            near = todo & (s <= radius)
            result[near] = np.polynomial.polynomial.polyval(s[near], coefficients)
            todo &= ~near
    for at, limit in zip(arc.y, (_limit(arc, -1), _limit(arc, 1)), strict=True):
        at_end = todo & (y == at) & np.full(y.shape, not math.isnan(limit))
        result[at_end] = limit
        todo &= ~at_end
    result[todo] = calculus.values(arc.piece.d1, _inverse(arc, y[todo]))
    return result


def anchored(arc: Arc, anchor: Anchor, y: Array) -> Array:
    """s = |y - f(T)|**(1/order), f(T) to twice float64's precision; 0 where y is beyond f(T)."""
    high, low = two_floats(anchor.y)
    sign = 1.0 if arc.range[1] > high else -1.0
    distance = np.maximum(sign * ((y - high) - low), 0.0)
    return np.sqrt(distance) if anchor.order == 2 else distance ** (1.0 / anchor.order)


def two_floats(value: Any) -> tuple[float, float]:
    """An arb's midpoint as the sum of two float64."""
    with flint.ctx.workprec(PRECISION):
        high = float(value)
        return high, float(value - flint.arb(high))


@lru_cache(maxsize=256)
def series(arc: Arc, end: int) -> tuple[Array, float]:
    """Coefficients of g in powers of s at the arc's anchor (0: at `lo`, 1: at `hi`), and the s they serve up to."""
    anchor = arc.anchors[end]
    if anchor is None:
        raise ValueError("the arc has no anchor at this end")
    inward = 1 if end == 0 else -1
    with flint.ctx.workprec(2 * PRECISION):
        flint.ctx.cap = TERMS
        taylor = _taylor(arc.piece, anchor, inward)
        order = anchor.order
        leading = taylor[order]
        # |y - f(T)| = |a| d**order (1 + ...), so s = d (|a| (1 + ...))**(1/order), and its reversion is d(s).
        root = (flint.arb_series([coefficient / leading for coefficient in taylor[order:]]).log() / order).exp()
        root = root * (abs(leading).log() / order).exp()
        inverse = (flint.arb_series([0, 1]) * root).reversion()
        derivative = flint.arb_series([k * coefficient for k, coefficient in enumerate(taylor)][1:])
        terms = derivative(inverse).coeffs()[: TERMS - order]
    coefficients = np.array([inward * float(term.mid()) for term in terms])
    first = int(np.flatnonzero(np.abs(coefficients) > 1e-40)[0])
    powers = np.arange(len(coefficients))[-8:]
    with np.errstate(divide="ignore"):  # where the last terms are 1e-18 of the first
        ratio = 1e-18 * abs(coefficients[first]) / np.abs(coefficients[-8:])
        radius = np.min(ratio ** (1.0 / (powers - first)))
    return coefficients, float(min(radius, _longest(arc, end)))


def _longest(arc: Arc, end: int) -> float:
    """How far s reaches on the arc from this anchor."""
    anchor, other = arc.anchors[end], arc.y[1 - end]
    if anchor is None or math.isinf(other):
        return math.inf
    return float(abs(other - float(anchor.y)) ** (1.0 / anchor.order))


def _taylor(piece: Piece, anchor: Anchor, inward: int) -> list[Any]:
    """Taylor coefficients of f(T + inward·d) at d = 0, from its values on a circle.

    Two circles must agree, which they do when f is analytic inside the larger one.
    """
    radius, before = flint.arb(2), None
    for _ in range(40):
        taylor = _on_circle(piece, anchor, inward, radius)
        if taylor is not None and before is not None:
            worst = max(abs((a - b).mid()) * radius**k for k, (a, b) in enumerate(zip(taylor, before, strict=True)))
            if worst <= abs(taylor[anchor.order].mid()) * radius**anchor.order * 1e-28:
                return taylor
        radius, before = radius / 2, taylor
    raise ValueError(f"f is not analytic at its anchor {float(anchor.x)!r}")


def _on_circle(piece: Piece, anchor: Anchor, inward: int, radius: Any) -> list[Any] | None:
    points = 4 * TERMS
    turns = [flint.acb(flint.fmpq(2 * k, points)).exp_pi_i() for k in range(points)]
    values = [piece.f.acb(flint.acb(anchor.x) + inward * radius * turn) for turn in turns]
    if not all(value.is_finite() for value in values):
        return None
    values = [flint.acb(value.real.mid(), value.imag.mid()) for value in values]
    coefficients = flint.acb.dft(values)
    taylor = [(value / points).real.mid() / radius**k for k, value in enumerate(coefficients[:TERMS])]
    return [anchor.y, *[flint.arb(0)] * (anchor.order - 1), *taylor[anchor.order :]]


def _limit(arc: Arc, sign: int) -> float:
    """f' at an infinite end; NaN at a finite one."""
    end = arc.hi if sign > 0 else arc.lo
    return calculus.limit(arc.piece.d1, sign) if math.isinf(end) else math.nan


@lru_cache(maxsize=256)
def _table(arc: Arc) -> tuple[Array, Array]:
    """Points x of the arc, in the order of increasing y, and their y."""
    lo, hi = arc.lo, arc.hi
    if math.isinf(lo) or math.isinf(hi):
        away = np.concatenate([np.linspace(0, 40, TABLE), np.geomspace(41, 1e308, TABLE)])
        x = np.concatenate([-away[:0:-1], away])
        x = hi - away[::-1] if math.isinf(lo) and math.isfinite(hi) else lo + away if math.isfinite(lo) else x
    else:
        x = np.linspace(lo, hi, TABLE)
    y = calculus.values(arc.piece.f, x)
    known = ~np.isnan(y)
    x, y = x[known][:: arc.direction], y[known][:: arc.direction]
    return x, np.maximum.accumulate(y)  # rounding may make far values waver


def _inverse(arc: Arc, y: Array) -> Array:
    """The x of the arc with f(x) = y, by Newton's method kept in a bracket that halves where Newton leaves it."""
    nodes, outputs = _table(arc)
    cell = np.clip(np.searchsorted(outputs, y, side="right"), 1, len(nodes) - 1)
    a, b = nodes[cell - 1], nodes[cell]  # f(a) <= y < f(b)
    x, running = a / 2 + b / 2, np.arange(len(y))
    for _ in range(STEPS):
        current = x[running]
        miss = calculus.values(arc.piece.f, current) - y[running]
        low = miss <= 0
        a[running[low]], b[running[~low]] = current[low], current[~low]
        with np.errstate(all="ignore"):
            step = current - miss / calculus.values(arc.piece.d1, current)
        left, right = a[running], b[running]
        inside = (step > np.minimum(left, right)) & (step < np.maximum(left, right))
        x[running] = np.where(miss == 0, current, np.where(inside, step, left / 2 + right / 2))
        running = running[(miss != 0) & (np.abs(x[running] - current) > 2e-16 * np.abs(current))]
        if not running.size:
            break
    return x
