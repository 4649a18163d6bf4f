"""The numbers of the pictures: f, f' and every fit at chosen points. Nothing is fitted here."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fitting.activations import Activation
from fitting.activations.tape import Array
from fitting.fewbit.steps import Steps
from fitting.invact.branches import Branch, split
from fitting.invact.document import candidate_of
from fitting.invact.exact import derivative_from_output
from fitting.joint.table import Table as JointTable
from notebooks.gallery.fits import Coded, FewBit, Fit, InvAct, Joint

POINTS = 2000
MARGIN = 0.15  # of what is shown
REACH = 3.0  # of x, at least, to both sides of 0
FAR = 8.0  # of x, in pictures of errors of formulas
TELLING_BITS = 4  # tables of more have borders far out, where nothing is to be seen


def window(fits: tuple[Fit, ...]) -> tuple[float, float]:
    """The x that a function's pictures show: its kinks, where few bits place their borders, and some more.

    No x that the tables were not fitted on: there they only go on as they end.
    """
    tables = [fit.document for fit in fits if isinstance(fit, Coded) and fit.kept_bits <= TELLING_BITS]
    places = [*fits[0].activation.breakpoints, *(x for document in tables for x in document["solution"]["borders"])]
    lo, hi = min([-REACH, *places]), max([REACH, *places])
    margin = MARGIN * (hi - lo) / 2
    lo, hi = min([-REACH, *(x - margin for x in places)]), max([REACH, *(x + margin for x in places)])
    domains = [document["options"]["domain"] for document in tables] or [(lo, hi)]
    return max(lo, min(domain[0] for domain in domains)), min(hi, max(domain[1] for domain in domains))


def points(activation: Activation, lo: float, hi: float, also: Array | None = None) -> Array:
    """x from lo to hi: even, and on both sides of every break and of `also`, which makes steps upright.

    Not at these themselves, where a function may take the value of either side.
    """
    breaks = np.concatenate([activation.breakpoints, [] if also is None else also])
    sides = np.concatenate([np.nextafter(breaks, -np.inf), np.nextafter(breaks, np.inf)])
    x = np.setdiff1d(np.concatenate([np.linspace(lo, hi, POINTS), sides]), breaks)
    return x[(lo <= x) & (x <= hi)]


@dataclass(frozen=True)
class Table:
    """f' or f, and the steps that stand for it."""

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
    """f' and f between lo and hi, each with the levels that a joint code has for it."""
    code = JointTable(**{key: np.array(values) for key, values in fit.document["solution"].items()})
    x = points(fit.activation, lo, hi, code.borders)
    codes = code.codes(x)
    derivative = Table(x, fit.activation.df(x), code.derivatives[codes])
    return derivative, Table(x, fit.activation.f(x), code.outputs[codes])


@dataclass(frozen=True)
class Formula:
    """One side of an InvAct fit: y, g and q where they are shown; x and the error of q further out."""

    y: Array
    g: Array
    q: Array
    x: Array
    error: Array
    bound: float | None


def formulas(fit: InvAct, lo: float, hi: float) -> list[Formula]:
    """The sides of an InvAct fit, left first; g and q for x between lo and hi."""
    result = []
    exact = _exact(fit.activation, lo, hi)
    document = fit.document
    for side, branch, bound in zip(exact, document["solution"]["branches"], document["error"]["bound"], strict=True):
        q = candidate_of(branch)
        with np.errstate(all="ignore"):  # the published formulas have roots of rounded numbers below 0
            error = np.abs(q(side.outputs) - side.slopes)
            if fit.is_relative:  # as the bound counts then
                error /= np.maximum(1.0, np.abs(side.slopes))
            result.append(Formula(side.y, side.g, q(side.y), side.x, error, bound))
    return result


@dataclass(frozen=True)
class _Side:
    """What the formulas of all dtypes are compared with: g at outputs y near by, slopes at outputs of x further out."""

    y: Array
    g: Array
    x: Array
    outputs: Array
    slopes: Array


@lru_cache(maxsize=8)  # the fits of one function come one after the other
def _exact(activation: Activation, lo: float, hi: float) -> tuple[_Side, ...]:
    sides = []
    for side in split(activation).branches:
        x = _inside(activation, side, min(lo, -FAR), max(hi, FAR))
        y, outputs = activation.f(_inside(activation, side, lo, hi)), activation.f(x)
        with np.errstate(all="ignore"):
            sides.append(_Side(y, derivative_from_output(side, y), x, outputs, derivative_from_output(side, outputs)))
    return tuple(sides)


def _inside(activation: Activation, side: Branch, lo: float, hi: float) -> Array:
    """Points of a side, dense where it meets the other: next to T, where x is a root of y."""
    lo, hi = max(lo, side.lo), min(hi, side.hi)
    near = np.geomspace(1e-6, 1.0, POINTS // 4) * (hi - lo)
    ends = [lo + near] * bool(np.isfinite(side.lo)) + [hi - near] * bool(np.isfinite(side.hi))
    x = np.unique(np.concatenate([points(activation, lo, hi), *ends]))
    return x[(lo < x) & (x < hi)]
