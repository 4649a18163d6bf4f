"""Closed forms adapted to a 16-bit format: the root at the turning point gets the constants that suit rounded outputs.

A closed form knows nothing of rounding. Next to T it is A(y)·s + B(y) with s = sqrt(|y - f(T)|), so that it is 0 at the
y nearest to f(T), which stands for many x with f' up to some bound. With s = sqrt(max(±(y - t), low)) it is as
cheap, and t and low are free. They are where the mean square of q - E[f' | y] over all stored outputs is least.

For any t, the outputs that stop at `low` have one s. Its best value is their weighted mean,
s = sum(m A (v - B)) / sum(m A²) with the masses m and the means v of f', as far as these outputs, and no others, stop
there. So the best `low` is found exactly, from running sums over the outputs by their distance from t: each number of
outputs that stop is tried. Only t, one number, is left to a search.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from sympy import Expr, Pow, Rational

from actfit.fitting.activations.functions import maximum
from actfit.fitting.activations.tape import Array, Tape
from actfit.fitting.invact.branches import Anchor, Branch, Split
from actfit.fitting.invact.engines.closed_form import ENGINE as CLOSED
from actfit.fitting.invact.engines.closed_form import as_candidate, closed_form
from actfit.fitting.invact.error_floor import Cells, ErrorFloor
from actfit.fitting.invact.formats import Format
from actfit.fitting.invact.formula import Candidate, Form
from actfit.fitting.invact.variable import S, Variable, Y, constant

ENGINE = "adapted"
CLOSED_FORMS = (CLOSED, ENGINE)  # as they are, and adapted
GRID = 201  # values of t that are tried, up to a step of the format left and right of f(T)
_SAME = 1e-7  # |y| by which the root of a closed form may be 0 beside f(T): f(T) is rounded to float64


@dataclass(frozen=True)
class _Outputs:
    """q = above·s + rest at outputs that are `distance` beyond f(T), and what it should be. All arrays: (n,)."""

    distance: Array  # |y - f(T)|, increasing; below 0 for outputs that rounding has taken beyond f(T)
    factor: Array  # A(y), by which s is multiplied
    value: Array  # the mean of f' over the x stored as y, less B(y)
    mass: Array  # how often y occurs

    def best_low(self, shift: float) -> tuple[float, float]:
        """The mean square that the best `low` leaves where s is measured from `shift` before f(T), and this `low`."""
        u = self.distance + shift
        ends = np.sqrt(np.maximum(np.concatenate([[0.0], u, u[-1:]]), 0.0))
        # Of the first k outputs, k = 0 to n: the cost is quadratic in their one s, which lies between two neighbours.
        square, product, constant_part = (
            np.concatenate([[0.0], np.cumsum(self.mass * column)])
            for column in (self.factor**2, self.factor * self.value, self.value**2)
        )
        following = self.mass * (self.factor * ends[1:-1] - self.value) ** 2
        rest = np.concatenate([np.cumsum(following[::-1])[::-1], [0.0]])
        weighted_mean = np.divide(product, square, out=np.zeros_like(product), where=square > 0)
        s = np.clip(weighted_mean, ends[:-1], ends[1:])
        cost = square * s**2 - 2.0 * product * s + constant_part + rest
        best = int(np.argmin(cost))
        return float(cost[best]), float(s[best] ** 2)


def adapted_candidates(error_floor: ErrorFloor) -> tuple[Candidate, ...] | None:
    """The closed forms of both branches with the root that suits the format best; one root serves both branches.

    error_floor: the branches and the stored outputs of a 16-bit format.
    Returns a formula for each branch. None where T is no turning point with such a root on both sides, where f(T)
    is 0, about which floating-point numbers are dense, or where no x that counts has a y within the root's reach.
    """
    parts = error_floor.split
    anchor = _turning_point(parts)
    if anchor is None or not float(anchor.y):
        return None
    forms = [_form(parts, branch, float(anchor.y), error_floor.format) for branch in parts.branches]
    known = [form for form in forms if form is not None]
    if len(known) < len(forms):
        return None
    variable = _best_variable(error_floor, known, float(anchor.y))
    return None if variable is None else tuple(Candidate(form, variable).rounded() for form in known)


def _turning_point(parts: Split) -> Anchor | None:
    """The anchor at T, if f turns there like a parabola on both sides."""
    if len(parts.branches) < 2:
        return None
    left, right = parts.branches[0].arcs[-1].anchors[1], parts.branches[1].arcs[0].anchors[0]
    both = left is not None and right is not None and left.order == right.order == 2
    return right if both else None


def _form(parts: Split, branch: Branch, at: float, format_: Format) -> Form | None:
    """The closed form of a branch with `S` for its root at y = at; None where it is not linear in one such root."""
    closed = closed_form(parts, branch)
    roots = [] if closed is None else [node for node in closed.atoms(Pow) if _is_root(node, at)]
    if closed is None or len(roots) != 1:
        return None
    in_root = closed.xreplace({roots[0]: S})
    form = as_candidate(in_root, format_, ENGINE).form
    return form if not in_root.diff(S).has(S) else None


def _is_root(node: Expr, at: float) -> bool:
    """Whether a node is the root of max(y - at, 0) or max(at - y, 0)."""
    base, exponent = node.args
    if exponent != Rational(1, 2) or not isinstance(base, maximum):
        return False
    linear, zero = sorted(base.args, key=lambda part: not part.has(Y))
    return bool(zero == 0 and abs(linear.diff(Y)) == 1 and abs(float(linear.subs(Y, Rational(at)))) < _SAME)


def _best_variable(error_floor: ErrorFloor, forms: list[Form], at: float) -> Variable | None:
    """s with the t and `low` that leave the least mean square over both branches; None without outputs that count."""
    upward = error_floor.split.branches[1].direction > 0
    sign = 1.0 if upward else -1.0
    columns = [_columns(cells, form, sign, at) for cells, form in zip(error_floor.cells, forms, strict=True)]
    joined = np.concatenate(columns, axis=1)
    if not joined.size:
        return None
    outputs = _Outputs(*joined[:, np.argsort(joined[0], kind="stable")])
    step = float(error_floor.format.spacing(np.array(at)))
    shifts = np.linspace(-step, step, GRID)
    costs = [outputs.best_low(float(shift))[0] for shift in shifts]
    best = int(np.argmin(costs))
    around = shifts[max(best - 1, 0)], shifts[min(best + 1, GRID - 1)]
    optimum: Any = minimize_scalar(
        lambda shift: outputs.best_low(float(shift))[0], bounds=around, method="bounded", options={"xatol": 1e-6 * step}
    )
    shift = float(optimum.x) if optimum.fun < costs[best] else float(shifts[best])
    return Variable(order=2, anchor=at - sign * shift, upward=upward, low=outputs.best_low(shift)[1] or None)


def _columns(cells: Cells, form: Form, sign: float, at: float) -> Array:
    """The columns of `_Outputs` for one branch, (4, n), where q = A(y)·s + B(y) and A is not 0."""
    numbers = {constant(i): Rational(value) for i, value in enumerate(form.values)}
    expression = form.expression.xreplace(numbers)
    ones = np.ones_like(cells.y)
    factor, rest = (
        Tape(part, Y).numpy(cells.y) * ones for part in (expression.diff(S), expression.xreplace({S: Rational(0)}))
    )
    used = (factor != 0) & np.isfinite(factor) & np.isfinite(rest) & (cells.mass > 0)
    rows = (sign * (cells.y - at), factor, cells.mean - rest, cells.mass)
    return np.stack([row[used] for row in rows])
