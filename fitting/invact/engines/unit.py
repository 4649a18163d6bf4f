"""A unit of fitting: one stretch of one side on which one formula is to stand for g, and the points to fit it at."""

import math
from dataclasses import dataclass, replace

import numpy as np

from fitting.activations import calculus
from fitting.activations.tape import Array
from fitting.errors import InputError
from fitting.invact.branches import Anchor, Arc, Side, Split
from fitting.invact.error_floor import Cells, Floor
from fitting.invact.exact import slope_of_output, two_floats
from fitting.invact.formula import Variable


@dataclass(frozen=True)
class Unit:
    """Side number `side` of a split, as far as `arc` goes; `even` where g is a function of |y|."""

    side: int
    arc: Arc
    even: bool

    @property
    def alone(self) -> Side:
        """The arc as a side of its own."""
        return Side(self.arc.lo, self.arc.hi, self.arc.direction, (self.arc,))

    def g(self, y: Array) -> Array:
        """The exact g at outputs of the arc (|y| where even)."""
        return slope_of_output(self.alone, np.abs(y) if self.even else y)

    @property
    def range(self) -> tuple[float, float]:
        """Infimum and supremum of the outputs, or of |y| where even."""
        return (0.0, self.arc.range[1]) if self.even else self.arc.range

    @property
    def anchor(self) -> Anchor | None:
        """Where f' is 0: what s is measured from."""
        return self.arc.anchors[0] or self.arc.anchors[1]

    @property
    def upward(self) -> bool:
        """Whether the arc's outputs lie above the anchor's."""
        return self.anchor is not None and self.arc.range[1] > float(self.anchor.y)

    def limit(self, sign: int) -> float | None:
        """What g tends to as y grows beyond all bounds upwards (1) or downwards (-1); None where y does not."""
        for end, toward in zip(self.arc.y, (-1, 1), strict=True):
            if end == sign * math.inf:
                return calculus.limit(self.arc.piece.d1, toward)
        return None


def unit_of(split: Split, side: int) -> Unit:
    """What has to be fitted of a side that has no closed form.

    Raises `InputError` where that is more than one smooth stretch (or two that mirror each other), and where f' has
    no finite limit.
    """
    activation, arcs = split.activation, [arc for arc in split.sides[side].arcs if arc.direction]
    even = len(split.sides) == 1 and activation.parity == "even" and float(activation.f(0.0)) == 0.0
    if len(arcs) == 1 or (even and len(arcs) == 2 and arcs[1].lo == 0.0):
        unit = Unit(side, arcs[-1], even)
    else:
        raise InputError(
            f"{activation.name} must be smooth on each side of its turning point, or have a closed form; it has "
            f"{len(arcs)} pieces on one side; python -m fitting.fewbit fits it"
        )
    for flat in (arc for arc in split.sides[side].arcs if not arc.direction):
        if unit.anchor is None or float(unit.anchor.y) != flat.y[0]:
            raise InputError(
                f"{activation.name} must have no flat part beside a slope that is not 0 there, or have a closed form; "
                f"it is {flat.y[0]:g} from x = {flat.lo:g} to {flat.hi:g}; python -m fitting.fewbit fits it"
            )
    for limit in (unit.limit(-1), unit.limit(1)):
        if limit is not None and not math.isfinite(limit):
            raise InputError(f"the derivative of {activation.name} must tend to finite limits, got {limit}")
    return unit


def variables(unit: Unit, floor: Floor, levels: tuple[float, ...], exactly: bool) -> list[Variable]:
    """The variables to try: measured from the anchor, cut where g is within each of `levels` of its limit.

    exactly: from f(T) itself, by two float32; otherwise from where it suits the floor's format best.
    """
    if unit.anchor is None:
        cuts = [(None if unit.even else cut(unit, level, -1), cut(unit, level, 1)) for level in levels]
        return [Variable(even=unit.even, low=low, high=high).rounded() for low, high in cuts]
    at, rest = two_floats(unit.anchor.y)
    plain = Variable(unit.anchor.order, at, 0.0, unit.upward, unit.even)
    if exactly:
        first = float(np.float32(at))
        plain = replace(plain, anchor=first, anchor_low=at - first + rest)
    else:
        origin, least = best_origin(floor, unit)
        plain = replace(plain, anchor=origin, low=least)
    sign = 1 if unit.upward else -1
    if unit.limit(sign) is None:
        found = [plain]
    else:
        found = [replace(plain, high=abs(cut(unit, level, sign) - at)) for level in levels]
    other = unit.arc.y[0 if unit.arc.anchors[0] is None else 1]
    if unit.anchor.order == 2 and math.isfinite(other) and exactly:
        found.append(replace(plain, end=other))
    return [one.rounded() for one in found]


def best_origin(floor: Floor, unit: Unit) -> tuple[float, float | None]:
    """Where a 16-bit format should measure s from, and the least distance, so that g is nearest to the mean of f'.

    Each y next to f(T) stands for many x, and g(y) is not the mean of their f'. Both sides have one origin, so that
    they share s. A search on a grid: a step of the format to either side of f(T), least distances up to a step.
    """
    if unit.anchor is None:
        raise ValueError("the unit has no anchor")
    at = float(unit.anchor.y)
    step = float(floor.format.spacing(np.array(at))) if at else 0.0
    if not step:
        return at, None
    sign = 1.0 if unit.upward else -1.0
    near = [_next_to(cells, at, 24 * step) for cells in floor.cells]
    distance = np.geomspace(1e-6, 40.0, 4000) * step
    tables = [slope_of_output(side, at + sign * distance) for side in floor.split.sides]
    best = (math.inf, at, 0.0)
    for shift in np.linspace(-1.0, 1.0, 81) * step:
        for least in np.geomspace(1e-3, 1.0, 61) * step:
            cost = 0.0
            for (y, mean, mass), table in zip(near, tables, strict=True):
                q = np.interp(np.maximum(sign * (y - at - shift), least), distance, table)
                cost += float(mass @ (q - mean) ** 2)
            best = min(best, (cost, float(at + shift), float(least)))
    return best[1], best[2]


def _next_to(cells: Cells, at: float, reach: float) -> tuple[Array, Array, Array]:
    chosen = np.abs(cells.y - at) <= reach
    return cells.y[chosen], cells.mean[chosen], cells.mass[chosen]


def cut(unit: Unit, level: float, sign: int) -> float:
    """The y of least size from which on |g - limit| <= level, upwards or downwards; the range's end if it has one."""
    low, high = unit.range
    limit = unit.limit(sign)
    if limit is None:
        return high if sign > 0 else low
    # Over x, which needs no inverse: from the arc's finite end, or 0, towards where y grows.
    arc = unit.arc
    toward = sign * arc.direction
    end = arc.lo if toward > 0 else arc.hi
    x = (end if math.isfinite(end) else 0.0) + toward * np.geomspace(1e-6, 1e6, 40_000)
    beyond = np.flatnonzero(np.abs(calculus.values(arc.piece.d1, x) - limit) > level)
    last = x[min(beyond[-1] + 1, len(x) - 1)] if beyond.size else x[0]
    return float(calculus.values(arc.piece.f, np.array([last]))[0])
