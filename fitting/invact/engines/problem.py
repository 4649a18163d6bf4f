"""A problem for an engine to solve: points, the values of g there, and the cost that is good enough."""

import math
from dataclasses import dataclass, replace

import numpy as np

from actfit.fitting.activations.tape import Array
from actfit.fitting.errors import InputError
from actfit.fitting.invact.engines.stretch import Stretch, cut, variables
from actfit.fitting.invact.error_floor import Cells, ErrorFloor
from actfit.fitting.invact.formula import Form, evaluate
from actfit.fitting.invact.judge import Rule
from actfit.fitting.invact.variable import Variable

CLOSE = 60  # outputs next to f(T) that stay single points when neighbours are merged
MERGED = 600  # the most points into which the other outputs of a 16-bit format are merged
SAMPLES = 400  # points, of float32
LEVELS = (0.9, 0.6, 0.3)  # of the least largest error: where a 16-bit formula may stop following g to its limit
STEEP = 60.0  # weight of an error beyond its bound, against the whole mean square
HUGE = 1e6  # errors are cut there, so that their squares stay finite


@dataclass(frozen=True)
class Squares:
    """The aim of a least mean square: the points' masses, and bounds that keep q within `slack` of `middle`."""

    mass: Array
    middle: Array
    slack: Array


@dataclass(frozen=True)
class Target:
    """The values that a formula should have at n points, and the cost of missing them."""

    # y, s: float64 (n,): the points: outputs, and the variable there
    y: Array
    s: Array
    value: Array  # float64 (n,): g, or the mean of f' over the x stored as y
    # with it the aim is the least mean square of q - value within bounds, without it the least largest error
    squares: Squares | None = None
    scale: float = 1.0  # the error that costs 1

    @property
    def weight(self) -> Array:
        """Weights of the points, for a first guess by plain least squares."""
        if self.squares is None or not self.squares.mass.any():
            return np.ones_like(self.value)
        root = np.sqrt(self.squares.mass)
        return np.asarray(root + 1e-3 * root.max())

    def cost(self, form: Form) -> float:
        """The quantity that a fit minimises: 0 for a perfect formula, inf for one that is not finite at every point."""
        return self.cost_of(evaluate(form, self.y, self.s) - self.value)

    def cost_of(self, error: Array) -> float:
        """The cost from q - value at the points."""
        if not np.isfinite(error).all():
            return math.inf
        if self.squares is None:
            return float(np.abs(error).max()) / self.scale
        return float(np.sum(self.residuals(self.squares, error) ** 2))

    def residuals(self, squares: Squares, error: Array) -> Array:
        """Errors in units of the scale; then their excess over the slack, in units of the slack."""
        error = np.clip(error, -HUGE, HUGE)
        beyond = np.maximum(np.abs(error + self.value - squares.middle) / squares.slack - 1.0, 0.0)
        return np.concatenate([np.sqrt(squares.mass) / self.scale * error, STEEP / len(error) ** 0.5 * beyond])

    def residual_jacobian(self, squares: Squares, error: Array, jacobian: Array) -> Array:
        """The Jacobian of `residuals`, from that of the error."""
        shifted = error + self.value - squares.middle
        active = (np.abs(shifted) > squares.slack) * np.sign(shifted) / squares.slack * STEEP / len(error) ** 0.5
        return np.concatenate([(np.sqrt(squares.mass) / self.scale)[:, None] * jacobian, active[:, None] * jacobian])


@dataclass(frozen=True)
class Tail:
    """g - limit falls about like 2**(rate * s**power) for large s."""

    rate: float
    power: int
    limit: float


@dataclass(frozen=True)
class Problem:
    """The search for one formula of s."""

    target: Target  # the points and values
    good_cost: float  # the cost that is good enough
    stop_cost: float  # the cost at which a search may stop
    zero: bool = False  # whether q(0) must be 0
    # the s about which powers are taken: costs a subtraction, and keeps errors in float32 near one rounding
    center: float = 0.0
    tail: Tail | None = None  # how g tends to its limit, if it does so exponentially


Task = tuple[Variable, Problem]


def problems(stretch: Stretch, error_floor: ErrorFloor, rule: Rule) -> list[Task]:
    """The problems of a stretch, one for each variable s.

    Under a rule that limits the mean square the aim is the least mean square, else the least largest error.
    """
    if not rule.by_rms:
        levels: tuple[float, ...] = (rule.pointwise / 2,)
        to_try = variables(stretch, error_floor, levels, exactly=True)
        return [(variable, _of_samples(stretch, variable, rule)) for variable in to_try]
    largest = max(error_floor.linf, error_floor.rounding_linf)
    to_try = variables(stretch, error_floor, tuple(level * largest for level in LEVELS), exactly=False)
    return [(variable, _of_cells(stretch, variable, error_floor, rule)) for variable in to_try]


def joint_problems(left: list[Task], right: list[Task]) -> list[tuple[Variable, Variable, Problem]]:
    """Problems of one formula for both branches in a signed s, where both measure s from the same f(T)."""
    first, points = left[0]
    joint = []
    for variable, problem in right:
        same = (first.anchor, first.order, first.upward, first.end) == (
            variable.anchor,
            variable.order,
            variable.upward,
            variable.end,
        )
        if same and variable.anchor is not None and variable.order == 2 and not variable.even:
            negative = replace(first, negative=True, high=variable.high)
            target = joined(points.target, problem.target)
            joint.append((negative, variable, replace(problem, target=target, tail=None)))
    return joint


def _of_cells(stretch: Stretch, variable: Variable, error_floor: ErrorFloor, rule: Rule) -> Problem:
    target = target_of_cells(variable, error_floor.cells[stretch.branch_index], math.sqrt(rule.square), rule.linf)
    return Problem(target, good_cost=0.8, stop_cost=0.05, tail=tail(stretch, variable))


def _of_samples(stretch: Stretch, variable: Variable, rule: Rule) -> Problem:
    target = replace(target_of_samples(stretch, variable), scale=rule.pointwise)
    low, high = float(target.s.min()), float(target.s.max())
    share = 0.4 if variable.anchor is not None and variable.end is None else 0.5  # measured: least rounding in float32
    bit = 2.0 ** (math.frexp(high - low)[1] - 5)  # a number of few bits reads well and is exact in float32
    center = round((low + share * (high - low)) / bit) * bit
    return Problem(target, 0.6, 0.25, variable.order > 1, center, tail(stretch, variable))


def target_of_cells(variable: Variable, cells: Cells, scale: float, linf: float) -> Target:
    """The outputs of a 16-bit format as points; neighbours are merged where there are many.

    `scale` and `linf` are the errors allowed: the root mean square, and the largest.
    """
    y, mean, middle, half, mass = cells.y, cells.mean, cells.middle, cells.half, cells.mass
    s = variable(y)
    order = np.argsort(s, kind="stable")
    rank = np.empty(len(s), dtype=np.int64)
    rank[order] = np.arange(len(s))
    grid = np.floor((s - s.min()) / max(float(np.ptp(s)), 1e-300) * MERGED).astype(np.int64)
    group = np.where(rank < CLOSE, rank, CLOSE + grid)
    _, group = np.unique(group, return_inverse=True)
    count = np.bincount(group)
    weight = mass + 1e-30
    total = np.bincount(group, weight)

    def merged(column: Array) -> Array:
        return np.bincount(group, weight * column) / total

    slack = np.full(len(count), math.inf)
    np.minimum.at(slack, group, 0.95 * (linf - half))
    squares = Squares(np.asarray(np.bincount(group, mass), dtype=np.float64), merged(middle), np.maximum(slack, 1e-12))
    return Target(merged(y), merged(s), merged(mean), squares, scale)


def target_of_samples(stretch: Stretch, variable: Variable) -> Target:
    """Points for the least largest error: even in the angle of s, close to both ends, and some beyond a cut."""
    low, high = stretch.range
    at = variable.anchor
    angle = (1.0 - np.cos(np.linspace(0.0, math.pi, SAMPLES))) / 2.0
    if at is None:
        first = low if variable.low is None else variable.low
        y = first + ((high if variable.high is None else variable.high) - first) * angle
    else:
        far = abs((high if variable.upward else low) - at) if variable.high is None else variable.high
        y = at + variable.anchor_low + (1.0 if variable.upward else -1.0) * far * angle**variable.order
        end = high if variable.upward else low
        if math.isfinite(end):
            y = np.concatenate([y, end - (end - at) * np.geomspace(1e-9, 1e-2, SAMPLES // 8)])
    y = np.clip(y, low, high)
    y = np.unique(y[np.isfinite(y)])
    if not y.size:
        raise InputError("f must have more than one finite output on each side, of those of the dtype: scale it down")
    s, value = variable(y), stretch.g(y)
    for sign, end in ((1, -1), (-1, 0)):
        limit = stretch.limit(sign)
        # Beyond a cut q is constant: its value there must also be near the limit of g.
        if limit is not None and not (stretch.even and sign < 0):
            y, s, value = np.append(y, y[end]), np.append(s, s[end]), np.append(value, limit)
    return Target(y, s, value)


def joined(left: Target, right: Target) -> Target:
    """The points of both branches in one signed s."""
    squares = None
    if left.squares is not None and right.squares is not None:
        both = (vars(left.squares), vars(right.squares))
        squares = Squares(**{key: np.concatenate([columns[key] for columns in both]) for key in both[0]})
    y, value = np.concatenate([left.y, right.y]), np.concatenate([left.value, right.value])
    return Target(y, np.concatenate([-left.s, right.s]), value, squares, right.scale)


def tail(stretch: Stretch, variable: Variable) -> Tail | None:
    """How g tends to its limit, in powers of s: log2 |g - limit| at three places; None where y stays finite."""
    limit = stretch.limit(1 if stretch.upward else -1)
    if limit is None or variable.anchor is None:
        return None
    levels = np.array([1e-2, 1e-4, 1e-6]) * (abs(limit) or 1.0)
    cuts = np.array([cut(stretch, level, 1 if stretch.upward else -1) for level in levels])
    s = np.abs(cuts - variable.anchor) ** (1.0 / variable.order)
    logs, best = np.log2(levels), (math.inf, 0.0, 0)
    for power in (1, 2, 4):
        rate = (logs[2] - logs[0]) / (s[2] ** power - s[0] ** power)
        miss = abs(logs[0] + rate * (s[1] ** power - s[0] ** power) - logs[1])
        best = min(best, (float(miss), float(rate), power))
    return Tail(best[1], best[2], limit)
