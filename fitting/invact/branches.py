"""The branches of f: left and right of its turning point T, each cut into arcs on which f is also smooth.

A branch is what one value of the stored bit stands for. On an arc f is constant, or strictly monotone with f' = 0 at
most at its ends. An end with f' = 0 is an anchor: there y - f(T) begins with (x - T)**order, and g(y) is smooth in the
order-th root of |y - f(T)|, not in y.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import flint
import numpy as np

from actfit.fitting.activations import Activation
from actfit.fitting.activations.activation import Branch as MonotonePart
from actfit.fitting.activations.calculus import PRECISION, Piece, bisect, sign_at
from actfit.fitting.activations.functions import x
from actfit.fitting.activations.tape import Tape
from actfit.fitting.errors import InputError

MAX_ORDER = 8  # of an anchor: beyond it f is as good as flat there
ROUNDING = 1e-12  # of x and y: f has not turned back where it moves by less
_ZERO = 1e-45  # |f'| below this, at 60 digits, counts as 0
_CLOSE = 1e-12  # values of f or f' that differ by less are the same
_NEAR = 1e-6  # a turning point known as a float64 lies within this of the true one


@dataclass(frozen=True)
class Anchor:
    """An end of an arc where f' = 0: x and y there to 50 digits and more (arb), and the order of contact."""

    x: Any
    y: Any
    order: int


@dataclass(frozen=True)
class Arc:
    """An interval inside one smooth piece. `y` are the values (limits) of f at `lo` and `hi`, in this order."""

    piece: Piece
    lo: float
    hi: float
    direction: int
    y: tuple[float, float]
    anchors: tuple[Anchor | None, Anchor | None]

    @property
    def range(self) -> tuple[float, float]:
        """Infimum and supremum of f."""
        return min(self.y), max(self.y)


@dataclass(frozen=True)
class Branch:
    """An interval of x on which f is monotone: what one value of the stored bit stands for."""

    # lo, hi: the ends of x; may be infinite
    lo: float
    hi: float
    direction: int  # 1 where f rises, -1 where it falls, 0 where it is constant on the whole branch
    arcs: tuple[Arc, ...]  # its smooth parts, by increasing x
    # y and f' where two sloping arcs meet; f' there is as the activation defines it
    kinks: tuple[tuple[float, float], ...] = ()

    @property
    def range(self) -> tuple[float, float]:
        """Infimum and supremum of f."""
        return min(arc.range[0] for arc in self.arcs), max(arc.range[1] for arc in self.arcs)


@dataclass(frozen=True)
class Split:
    """An activation and its branches."""

    activation: Activation  # the function f
    # left to right: one branch, which needs no bit, or two, told apart by the bit x >= border
    branches: tuple[Branch, ...]
    border: float | None  # T, where the two branches meet
    border_is_left: bool = False  # whether T itself belongs to the left branch; then the bit is x > border

    @property
    def takes_second_bit(self) -> bool:
        """Whether a second bit, which way y was rounded, improves f': f' varies with y, and there is a branch bit."""
        curved = any(arc.direction and arc.piece.d2.expression != 0 for branch in self.branches for arc in branch.arcs)
        return len(self.branches) == 2 and curved


def split(activation: Activation) -> Split:
    """The branches of an activation.

    Raises `InputError` if f has more than two branches, which one bit cannot tell apart, or no limits at -inf and
    inf.
    """
    limits = activation.limits
    if math.isnan(limits.left) or math.isnan(limits.right):
        raise InputError(
            f"{activation.name} must be defined everywhere and have limits at -inf and +inf that sympy finds;"
            " actfit fewbit fits others"
        )
    groups: list[list[MonotonePart]] = []
    for part in activation.branches:
        jump = activation.jump(0, part.lo) if groups else 0
        directions = {earlier.direction for earlier in groups[-1]} if groups else set()
        if groups and len((directions | {part.direction, jump}) - {0}) <= 1:
            groups[-1].append(part)
        else:
            groups.append([part])
    if len(groups) > 2:
        raise InputError(
            f"{activation.name} must have at most two monotone branches, for one bit to tell them apart, got "
            f"{len(groups)}; actfit fewbit fits it"
        )
    branches = [_branch(activation, group) for group in groups]
    for branch in branches:
        _check_monotone(activation, branch)
    if len(branches) == 1:
        return Split(activation, tuple(branches), None)
    border = branches[1].lo
    is_left = _belongs_left(activation, border)
    owner, end = (0, 1) if is_left else (1, 0)
    arc = branches[owner].arcs[-1 if is_left else 0]
    if arc.direction and arc.anchors[end] is None:  # a kink: f' as the activation defines it
        kink = (arc.y[end], float(activation.df(border)))
        branches[owner] = replace(branches[owner], kinks=(*branches[owner].kinks, kink))
    return Split(activation, tuple(branches), border, is_left)


def _check_monotone(activation: Activation, branch: Branch) -> None:
    """Raise `InputError` if f turns back, at a turning point that the scan has missed."""
    away = np.geomspace(1e-12, 1e6, 2000)
    for arc in branch.arcs:
        x = np.unique(np.concatenate([-away, away, *(end + away * sign for end, sign in ((arc.lo, 1), (arc.hi, -1)))]))
        x = x[(arc.lo < x) & (x < arc.hi)]
        y = activation.f(x)
        with np.errstate(invalid="ignore"):  # inf - inf, where f overflows
            back = np.diff(y) * (arc.direction or 1) < -ROUNDING * (np.abs(x[1:]) + np.abs(y[1:]))
        if back.any():
            at = x[int(np.argmax(back))]
            raise InputError(f"{activation.name} must be monotone next to x = {at:.3g}, where a turn was not found")


def _branch(activation: Activation, group: list[MonotonePart]) -> Branch:
    lo, hi = group[0].lo, group[-1].hi
    cuts = {*activation.breakpoints, *(part.lo for part in group)}
    cuts |= {at for at in activation.turning_points(1) if _vanishes(activation, at)}
    edges = [lo, *sorted(cut for cut in cuts if lo < cut < hi), hi]
    arcs = tuple(_arc(activation, group, a, b) for a, b in pairwise(edges))
    directions = {arc.direction for arc in arcs} - {0}
    kinks = tuple(
        (left.y[1], float(activation.df(left.hi)))
        for left, right in pairwise(arcs)
        if left.direction and right.direction and left.y[1] == right.y[0]
    )
    return Branch(lo, hi, next(iter(directions), 0), arcs, kinks)


def _arc(activation: Activation, group: list[MonotonePart], lo: float, hi: float) -> Arc:
    piece = next(piece for piece in activation.pieces if piece.lo <= lo and hi <= piece.hi)
    direction = next(part.direction for part in group if part.lo <= lo and hi <= part.hi)
    limits = activation.limits
    anchors = tuple(_anchor(piece, end) if direction and math.isfinite(end) else None for end in (lo, hi))
    outputs = []
    for end, anchor, limit in zip((lo, hi), anchors, (limits.left, limits.right), strict=True):
        if math.isinf(end):
            outputs.append(limit)
        else:
            with flint.ctx.workprec(PRECISION):
                outputs.append(_nearest(anchor.y if anchor else piece.f.arb(flint.arb(end))))
    return Arc(piece, lo, hi, direction, (outputs[0], outputs[1]), (anchors[0], anchors[1]))


def _nearest(ball: Any) -> float:
    """The float64 nearest to the middle of a ball; 0 where a finite ball holds 0: 1/2 - 3/6 is 1e-61 at 200 bits."""
    return 0.0 if ball.is_finite() and ball.contains(0) else float(ball)


def _vanishes(activation: Activation, at: float) -> bool:
    """Whether f' is 0 at a turning point of f', which is known as a float64."""
    piece = next(piece for piece in activation.pieces if piece.lo <= at <= piece.hi)
    with flint.ctx.workprec(PRECISION):
        return bool(abs(piece.d1.arb(_sharpened(piece, at, order=1))) < _ZERO)


def _sharpened(piece: Piece, at: float, order: int) -> Any:
    """The root of f' (order 0) or f'' (order 1) next to `at`, to 50 digits; `at` itself where there is none."""
    derivative, reach = (piece.d2 if order else piece.d1), _NEAR * max(1.0, abs(at))
    with flint.ctx.workprec(PRECISION):
        if sign_at(derivative, at) == 0 or sign_at(derivative, at - reach) * sign_at(derivative, at + reach) >= 0:
            return flint.arb(at)
        return bisect(derivative, at - reach, at + reach)


def _anchor(piece: Piece, end: float) -> Anchor | None:
    """The anchor at a finite end of an arc, if f' of its piece is 0 there."""
    at = _sharpened(piece, end, order=0)
    if at == end:
        at = _sharpened(piece, end, order=1)
    with flint.ctx.workprec(PRECISION):
        if not abs(piece.d1.arb(at)) < _ZERO:
            return None
        derivative = piece.d2
        for order in range(2, MAX_ORDER + 1):
            if not abs(derivative.arb(at)) < _ZERO:
                return Anchor(at, piece.f.arb(at).mid(), order)
            derivative = Tape(derivative.expression.diff(x))
    raise InputError(f"f' must not vanish to an order above {MAX_ORDER - 1}, as it does at x = {end:g}")


def _belongs_left(activation: Activation, border: float) -> bool:
    """Whether f and f' at the border are those of the left piece rather than of the right one."""
    if border not in activation.breakpoints:
        return False
    at = activation.breakpoints.index(border)
    at_border = (float(activation.f(border)), float(activation.df(border)))
    with flint.ctx.workprec(PRECISION):
        left, right = (
            sum(
                abs(float(tape.arb(flint.arb(border))) - value)
                for tape, value in zip((p.f, p.d1), at_border, strict=True)
            )
            for p in activation.pieces[at : at + 2]
        )
    # Not equality: `at_border` comes from float64 arithmetic. Where the pieces agree, the border is the right one's.
    return left + _CLOSE * (1 + abs(at_border[0]) + abs(at_border[1])) < right
