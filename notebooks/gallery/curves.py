"""The numbers of the pictures: f, f' and the stored fits at points of x. Nothing is fitted here."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from actfit.fitting.activations import Activation
from actfit.fitting.activations.tape import Array
from actfit.fitting.fewbit.steps import Steps
from actfit.fitting.invact.branches import Branch, split
from actfit.fitting.invact.document import candidate_of
from actfit.fitting.invact.exact import derivative_from_output
from actfit.fitting.joint.table import Table as JointTable
from notebooks.gallery.fits import Coded, FewBit, Fit, InvAct, Joint

POINTS = 2000
MARGIN = 0.15  # of the range shown
REACH = 3.0  # pictures show at least |x| up to this
FAR = 8.0  # pictures of the errors of formulas show at least |x| up to this
TELLING_BITS = 4  # tables of more bits have borders far out, where the curves are flat


def window(fits: tuple[Fit, ...]) -> tuple[float, float]:
    """The range of x in a function's pictures: its kinks, the borders of its tables of few bits, and a margin.

    Limited to the domain of the tables, as they are constant beyond it.
    """
    tables = [fit.document for fit in fits if isinstance(fit, Coded) and fit.kept_bits <= TELLING_BITS]
    places = [*fits[0].activation.breakpoints, *(x for document in tables for x in document["solution"]["borders"])]
    lo, hi = min([-REACH, *places]), max([REACH, *places])
    margin = MARGIN * (hi - lo) / 2
    lo, hi = min([-REACH, *(x - margin for x in places)]), max([REACH, *(x + margin for x in places)])
    domains = [document["options"]["domain"] for document in tables] or [(lo, hi)]
    return max(lo, min(domain[0] for domain in domains)), min(hi, max(domain[1] for domain in domains))


def points(activation: Activation, lo: float, hi: float, also: Array | None = None) -> Array:
    """x from lo to hi: evenly spaced, and on both sides of every break and of `also`, so that steps are drawn upright.

    Not at the breaks themselves, where a function may have the value of either side.
    """
    breaks = np.concatenate([activation.breakpoints, [] if also is None else also])
    sides = np.concatenate([np.nextafter(breaks, -np.inf), np.nextafter(breaks, np.inf)])
    x = np.setdiff1d(np.concatenate([np.linspace(lo, hi, POINTS), sides]), breaks)
    return x[(lo <= x) & (x <= hi)]


@dataclass(frozen=True)
class Table:
    """f' or f, and the steps that approximate it."""

    x: Array
    exact: Array
    q: Array

    @property
    def error(self) -> Array:
        return self.exact - self.q


def table(fit: FewBit, lo: float, hi: float) -> Table:
    """f' and a few-bit fit of it between lo and hi."""
    solution = fit.document["solution"]
    steps = Steps(*(np.array(solution[key]) for key in ("borders", "codes", "levels")))
    x = points(fit.activation, lo, hi, steps.borders)
    return Table(x, fit.activation.df(x), steps(x))


def joint_tables(fit: Joint, lo: float, hi: float) -> tuple[Table, Table]:
    """f' and f between lo and hi, each with its levels in a joint code."""
    code = JointTable(**{key: np.array(values) for key, values in fit.document["solution"].items()})
    x = points(fit.activation, lo, hi, code.borders)
    codes = code.codes(x)
    derivative = Table(x, fit.activation.df(x), code.derivatives[codes])
    return derivative, Table(x, fit.activation.f(x), code.outputs[codes])


@dataclass(frozen=True)
class Formula:
    """A branch of an InvAct fit: y, g and q for the upper picture; x and the error of q, further out, for the lower."""

    y: Array
    g: Array
    q: Array
    x: Array
    error: Array
    bound: float | None


def formulas(fit: InvAct, lo: float, hi: float) -> list[Formula]:
    """The branches of an InvAct fit, left first; g and q for x between lo and hi."""
    result = []
    exact_branches = _exact(fit.activation, lo, hi)
    document = fit.document
    for exact, branch, bound in zip(
        exact_branches, document["solution"]["branches"], document["error"]["bound"], strict=True
    ):
        q = candidate_of(branch)
        with np.errstate(all="ignore"):  # the published formulas have roots of rounded numbers below 0
            error = np.abs(q(exact.outputs) - exact.derivatives)
            if fit.is_relative:  # as for the bound
                error /= np.maximum(1.0, np.abs(exact.derivatives))
            result.append(Formula(exact.y, exact.g, q(exact.y), exact.x, error, bound))
    return result


@dataclass(frozen=True)
class _ExactBranch:
    """Exact values of a branch, for formulas of all dtypes: g at outputs y; derivatives at outputs of x further out."""

    y: Array
    g: Array
    x: Array
    outputs: Array
    derivatives: Array


@lru_cache(maxsize=8)  # the fits of a function are drawn one after the other
def _exact(activation: Activation, lo: float, hi: float) -> tuple[_ExactBranch, ...]:
    branches = []
    for branch in split(activation).branches:
        x = _inside(activation, branch, min(lo, -FAR), max(hi, FAR))
        y, outputs = activation.f(_inside(activation, branch, lo, hi)), activation.f(x)
        with np.errstate(all="ignore"):
            branches.append(
                _ExactBranch(y, derivative_from_output(branch, y), x, outputs, derivative_from_output(branch, outputs))
            )
    return tuple(branches)


def _inside(activation: Activation, branch: Branch, lo: float, hi: float) -> Array:
    """Points of a branch, dense next to T, where it meets the other branch and x is a root of y."""
    lo, hi = max(lo, branch.lo), min(hi, branch.hi)
    near = np.geomspace(1e-6, 1.0, POINTS // 4) * (hi - lo)
    ends = [lo + near] * bool(np.isfinite(branch.lo)) + [hi - near] * bool(np.isfinite(branch.hi))
    x = np.unique(np.concatenate([points(activation, lo, hi), *ends]))
    return x[(lo < x) & (x < hi)]
