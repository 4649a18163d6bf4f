"""A stretch: the part of a branch on which one formula approximates g, and the variables s to write it in."""

import math
from dataclasses import dataclass, replace

import numpy as np

from actfit.fitting.activations import calculus
from actfit.fitting.activations.tape import Array
from actfit.fitting.errors import InputError
from actfit.fitting.invact.branches import Anchor, Arc, Branch, Split
from actfit.fitting.invact.error_floor import Cells, ErrorFloor
from actfit.fitting.invact.exact import derivative_from_output, two_floats
from actfit.fitting.invact.variable import Variable


@dataclass(frozen=True)
class Stretch:
    """The part of a branch on which one formula approximates g."""

    branch_index: int  # of the branch in its split
    arc: Arc  # the smooth part of the branch that is fitted
    even: bool  # whether g is a function of |y|; then the arc is the right half of the branch

    @property
    def alone(self) -> Branch:
        """The arc as a branch of its own."""
        return Branch(self.arc.lo, self.arc.hi, self.arc.direction, (self.arc,))

    def g(self, y: Array) -> Array:
        """The exact g at outputs of the arc (|y| where even)."""
        return derivative_from_output(self.alone, np.abs(y) if self.even else y)

    @property
    def range(self) -> tuple[float, float]:
        """Infimum and supremum of the outputs, or of |y| where even."""
        return (0.0, self.arc.range[1]) if self.even else self.arc.range

    @property
    def anchor(self) -> Anchor | None:
        """The end where f' is 0, from which s is measured."""
        return self.arc.anchors[0] or self.arc.anchors[1]

    @property
    def upward(self) -> bool:
        """Whether the arc's outputs lie above the anchor's."""
        return self.anchor is not None and self.arc.range[1] > float(self.anchor.y)

    def limit(self, sign: int) -> float | None:
        """The limit of g as y grows without bound upwards (1) or downwards (-1); None if y is bounded there."""
        for end, toward in zip(self.arc.y, (-1, 1), strict=True):
            if end == sign * math.inf:
                return calculus.limit(self.arc.piece.d1, toward)
        return None


def stretch_of(split: Split, index: int) -> Stretch:
    """The stretch to fit of a branch that has no closed form.

    split: the branches of f.
    index: of the branch.
    Raises `InputError` if the branch has more than one smooth stretch (or two that mirror each other), or f' no
    finite limit.
    """
    activation, arcs = split.activation, [arc for arc in split.branches[index].arcs if arc.direction]
    even = len(split.branches) == 1 and activation.parity == "even" and float(activation.f(0.0)) == 0.0
    if len(arcs) == 1 or (even and len(arcs) == 2 and arcs[1].lo == 0.0):
        stretch = Stretch(index, arcs[-1], even)
    else:
        raise InputError(
            f"{activation.name} must be smooth on each side of its turning point, or have a closed form; it has "
            f"{len(arcs)} pieces on one side; actfit fewbit fits it"
        )
    for flat in (arc for arc in split.branches[index].arcs if not arc.direction):
        if stretch.anchor is None or float(stretch.anchor.y) != flat.y[0]:
            raise InputError(
                f"{activation.name} must have no flat part beside a slope that is not 0 there, or have a closed form; "
                f"it is {flat.y[0]:g} from x = {flat.lo:g} to {flat.hi:g}; actfit fewbit fits it"
            )
    for limit in (stretch.limit(-1), stretch.limit(1)):
        if limit is not None and not math.isfinite(limit):
            raise InputError(f"the derivative of {activation.name} must tend to finite limits, got {limit}")
    return stretch


def variables(stretch: Stretch, error_floor: ErrorFloor, levels: tuple[float, ...], exactly: bool) -> list[Variable]:
    """The variables s to try: measured from the anchor, and stopped where g is within each of `levels` of its limit.

    With `exactly` s is measured from f(T) itself, by two float32; otherwise from where it suits the format best.
    """
    if stretch.anchor is None:
        cuts = [(None if stretch.even else cut(stretch, level, -1), cut(stretch, level, 1)) for level in levels]
        return [Variable(even=stretch.even, low=low, high=high).rounded() for low, high in cuts]
    at, rest = two_floats(stretch.anchor.y)
    plain = Variable(stretch.anchor.order, at, 0.0, stretch.upward, stretch.even)
    if exactly:
        first = float(np.float32(at))
        plain = replace(plain, anchor=first, anchor_low=at - first + rest)
    else:
        origin, least = best_origin(error_floor, stretch)
        plain = replace(plain, anchor=origin, low=least)
    sign = 1 if stretch.upward else -1
    if stretch.limit(sign) is None:
        to_try = [plain]
    else:
        to_try = [replace(plain, high=abs(cut(stretch, level, sign) - at)) for level in levels]
    other = stretch.arc.y[0 if stretch.arc.anchors[0] is None else 1]
    if stretch.anchor.order == 2 and math.isfinite(other) and exactly:
        to_try.append(replace(plain, end=other))
    return [variable.rounded() for variable in to_try]


def best_origin(error_floor: ErrorFloor, stretch: Stretch) -> tuple[float, float | None]:
    """The origin of s in a 16-bit format and the least distance from it, for which g is nearest to the mean of f'.

    Each y next to f(T) stands for many x, and g(y) is not the mean of their f'. Both branches have one origin, so that
    they share s. A grid is searched: origins up to a step of the format left and right of f(T), least distances up to
    a step.
    """
    if stretch.anchor is None:
        raise ValueError("the stretch has no anchor")
    at = float(stretch.anchor.y)
    step = float(error_floor.format.spacing(np.array(at))) if at else 0.0
    if not step:
        return at, None
    sign = 1.0 if stretch.upward else -1.0
    near = [_next_to(cells, at, 24 * step) for cells in error_floor.cells]
    distance = np.geomspace(1e-6, 40.0, 4000) * step
    tables = [derivative_from_output(branch, at + sign * distance) for branch in error_floor.split.branches]
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
    """y, mean and mass of the cells within `reach` of `at`."""
    near = np.abs(cells.y - at) <= reach
    return cells.y[near], cells.mean[near], cells.mass[near]


def cut(stretch: Stretch, level: float, sign: int) -> float:
    """The y from which on |g - limit| <= level, upwards or downwards; the end of the range where that is finite."""
    low, high = stretch.range
    limit = stretch.limit(sign)
    if limit is None:
        return high if sign > 0 else low
    # Over x, which needs no inverse: from the arc's finite end, or 0, towards where y grows.
    arc = stretch.arc
    toward = sign * arc.direction
    end = arc.lo if toward > 0 else arc.hi
    x = (end if math.isfinite(end) else 0.0) + toward * np.geomspace(1e-6, 1e6, 40_000)
    beyond = np.flatnonzero(np.abs(calculus.values(arc.piece.d1, x) - limit) > level)
    last = x[min(beyond[-1] + 1, len(x) - 1)] if beyond.size else x[0]
    return float(calculus.values(arc.piece.f, np.array([last]))[0])
