"""g(y) = f'(f⁻¹(y)) in float64, over arrays: a power series in s next to an anchor, Newton's method elsewhere."""

import math
from functools import lru_cache
from typing import Any

import flint
import numpy as np

from fitting.activations import calculus
from fitting.activations.calculus import PRECISION, Piece
from fitting.activations.tape import Array
from fitting.invact.branches import Anchor, Arc, Side

TERMS = 48  # of a series; with the radius below, what is left out is under 1e-18
TABLE = 1200  # points between which a root is bracketed
STEPS = 100  # of Newton and bisection: the halvings of the widest bracket, and some


def slope_of_output(side: Side, y: Array) -> Array:
    """g at outputs `y` (float64, any shape) of one side, to a few units of the last place of max(1, |g|).

    A y out of the side's range (a rounding below f(T), say) gives the value at its end; NaN gives NaN.
    """
    y = np.asarray(y, dtype=np.float64)
    given = y.ravel()
    flat = np.clip(given, *side.range)
    result = np.full(flat.shape, math.nan)
    for arc in side.arcs:
        lo, hi = arc.range
        inside = (lo <= flat) & (flat <= hi)
        # Where arcs meet, one with a slope has it from its own end; a flat one is right for all but that point.
        inside &= np.isnan(result) | (arc.direction == 0)
        result[inside] = _on_arc(arc, flat[inside], given[inside])
    for at, slope in side.kinks:
        result[flat == at] = slope
    gap = np.isnan(result) & ~np.isnan(flat)  # f jumps over these: the nearest value that it takes
    if gap.any():
        ends = np.array(sorted({end for arc in side.arcs for end in arc.range}))
        nearest = ends[np.argmin(np.abs(flat[gap, None] - ends), axis=1)]
        result[gap] = slope_of_output(side, nearest)
    return result.reshape(y.shape)


def _on_arc(arc: Arc, y: Array, given: Array) -> Array:
    """g at `y` in the arc's range; `given` is y before it was put there, for s to be 0 below f(T)."""
    if arc.direction == 0:
        return np.zeros_like(y)
    result, left = np.empty_like(y), np.ones(y.shape, dtype=np.bool_)
    for end, anchor in enumerate(arc.anchors):
        if anchor is not None:
            s = anchored(arc, anchor, given)
            coefficients, radius = series(arc, end)
            near = left & (s <= radius)
            result[near] = np.polynomial.polynomial.polyval(s[near], coefficients)
            left &= ~near
    for at, limit in zip(arc.y, (_limit(arc, -1), _limit(arc, 1)), strict=True):
        end = left & (y == at) & np.full(y.shape, not math.isnan(limit))
        result[end] = limit
        left &= ~end
    result[left] = calculus.values(arc.piece.d1, _inverse(arc, y[left]))
    return result


def anchored(arc: Arc, anchor: Anchor, y: Array) -> Array:
    """s = |y - f(T)|**(1/order), f(T) to twice float64's precision; 0 where y is on the wrong side of f(T)."""
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
    """Coefficients of g in powers of s at the arc's anchor (0: at `lo`, 1: at `hi`), and how far they serve."""
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
        root = (flint.arb_series([one / leading for one in taylor[order:]]).log() / order).exp()
        root = root * (abs(leading).log() / order).exp()
        inverse = (flint.arb_series([0, 1]) * root).reversion()
        slope = flint.arb_series([k * one for k, one in enumerate(taylor)][1:])
        found = [inward * float(one.mid()) for one in slope(inverse).coeffs()][: TERMS - order]
    coefficients = np.array(found)
    first = int(np.flatnonzero(np.abs(coefficients) > 1e-40)[0])
    powers = np.arange(len(found))[-8:]
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
        found = _on_circle(piece, anchor, inward, radius)
        if found is not None and before is not None:
            worst = max(abs((a - b).mid()) * radius**k for k, (a, b) in enumerate(zip(found, before, strict=True)))
            if worst <= abs(found[anchor.order].mid()) * radius**anchor.order * 1e-28:
                return found
        radius, before = radius / 2, found
    raise ValueError(f"f is not analytic at its anchor {float(anchor.x)!r}")


def _on_circle(piece: Piece, anchor: Anchor, inward: int, radius: Any) -> list[Any] | None:
    points = 4 * TERMS
    turns = [flint.acb(flint.fmpq(2 * k, points)).exp_pi_i() for k in range(points)]
    values = [piece.f.acb(flint.acb(anchor.x) + inward * radius * turn) for turn in turns]
    if not all(value.is_finite() for value in values):
        return None
    values = [flint.acb(value.real.mid(), value.imag.mid()) for value in values]
    coefficients = flint.acb.dft(values)
    found = [(one / points).real.mid() / radius**k for k, one in enumerate(coefficients[:TERMS])]
    return [anchor.y, *[flint.arb(0)] * (anchor.order - 1), *found[anchor.order :]]


def _limit(arc: Arc, side: int) -> float:
    """f' at an infinite end; NaN at a finite one."""
    end = arc.hi if side > 0 else arc.lo
    return calculus.limit(arc.piece.d1, side) if math.isinf(end) else math.nan


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
    x, open_ = a / 2 + b / 2, np.arange(len(y))
    for _ in range(STEPS):
        here = x[open_]
        miss = calculus.values(arc.piece.f, here) - y[open_]
        low = miss <= 0
        a[open_[low]], b[open_[~low]] = here[low], here[~low]
        with np.errstate(all="ignore"):
            step = here - miss / calculus.values(arc.piece.d1, here)
        left, right = a[open_], b[open_]
        inside = (step > np.minimum(left, right)) & (step < np.maximum(left, right))
        x[open_] = np.where(miss == 0, here, np.where(inside, step, left / 2 + right / 2))
        open_ = open_[(miss != 0) & (np.abs(x[open_] - here) > 2e-16 * np.abs(here))]
        if not open_.size:
            break
    return x
