"""The pictures: a function with its derivative; each fit with what it approximates, and its error below."""

import math
from functools import singledispatch

import numpy as np
from markupsafe import Markup

from notebooks.gallery.curves import Formula, Table, formulas, joint_tables, points, table
from notebooks.gallery.fits import FewBit, Fit, InvAct, Joint
from notebooks.gallery.markup import tag
from notebooks.gallery.shelves import Shelf
from notebooks.gallery.svg import Panel, picture, widened

RESOLVED = 1e-15  # smaller errors are rounding errors of float64
DEPTH = 1e-4  # a logarithmic scale ends at this share of the largest error
BRANCH_NAMES = ("left", "right")
SMALL = (120, 64)  # width and height of a thumbnail


def function_picture(shelf: Shelf, x_range: tuple[float, float]) -> Markup:
    """f and f' over the same x."""
    x = points(shelf.activation, *x_range)
    f, derivative = shelf.activation.f(x), shelf.activation.df(x)
    panel = Panel(x_range, widened(min(f.min(), derivative.min()), max(f.max(), derivative.max())), 18, 136)
    panel.curve(x, f, "curve f")
    panel.curve(x, derivative, "curve slope")
    return picture(f"{shelf.title} and its derivative", f"{shelf.id}-picture", 184, panel.drawn("x", "f, f′"))


def thumbnail(shelf: Shelf, x_range: tuple[float, float]) -> Markup:
    """f' and its table of 2 bits, if any, without axes; the name is beside it."""
    x = points(shelf.activation, *x_range)
    derivative = shelf.activation.df(x)
    panel = Panel(x_range, widened(derivative.min(), derivative.max()), 2, SMALL[1] - 4, left=2, right=SMALL[0] - 2)
    panel.curve(x, derivative, "curve exact")
    if shelf.two_bits is not None:
        curves = table(shelf.two_bits, *x_range)
        panel.curve(curves.x, curves.q, "curve fit")
    return tag("svg", *panel.inside, viewBox=f"0 0 {SMALL[0]} {SMALL[1]}", aria_hidden="true")


@singledispatch
def fit_picture(fit: Fit, x_range: tuple[float, float]) -> Markup:
    """A fit beside what it approximates, and the error below."""
    raise NotImplementedError(type(fit))


@fit_picture.register
def _few_bit_picture(fit: FewBit, x_range: tuple[float, float]) -> Markup:
    curves = table(fit, *x_range)
    above = _steps(curves, x_range, 18, 116)
    title = f"The derivative of {fit.entry.function} and its approximation by {fit.setting}"
    worst = float(np.abs(curves.error).max())
    if worst == 0:
        return picture(title, f"{fit.id}-picture", 166, above.drawn("x", "f′ and q"))
    below = Panel(x_range, widened(-worst, worst), 156, 70)
    below.curve(curves.x, curves.error, "curve error")
    panels = above.drawn("x", "f′ and q", labelled=False), below.drawn("x", "error f′ − q")
    return picture(f"{title}; the error below", f"{fit.id}-picture", 256, *panels)


@fit_picture.register
def _joint_picture(fit: Joint, x_range: tuple[float, float]) -> Markup:
    derivative, output = joint_tables(fit, *x_range)
    worst = _inner_error(fit, derivative, output)
    errors = Panel(x_range, widened(-worst, worst), 254, 70)
    errors.curve(output.x, output.error, "curve error f")
    errors.curve(derivative.x, derivative.error, "curve error")
    panels = (
        _steps(derivative, x_range, 18, 96).drawn("x", "f′ and q", labelled=False),
        _steps(output, x_range, 136, 96).drawn("x", "f and y", labelled=False),
        errors.drawn("x", "errors f′ − q and f − y"),
    )
    title = f"{fit.entry.function} and its derivative, and what one code of {fit.setting} makes of both"
    return picture(f"{title}; the errors below", f"{fit.id}-picture", 354, *panels)


def _steps(curves: Table, x_range: tuple[float, float], top: float, height: float) -> Panel:
    """A panel of steps over what they approximate."""
    values = np.concatenate([curves.exact, curves.q])
    panel = Panel(x_range, widened(values.min(), values.max()), top, height)
    panel.curve(curves.x, curves.exact, "curve exact")
    panel.curve(curves.x, curves.q, "curve fit")
    return panel


def _inner_error(fit: Joint, *tables: Table) -> float:
    """The largest error between the outermost borders, if there are two; beyond, the error of f may be unbounded."""
    borders = fit.document["solution"]["borders"]
    lo, hi = (borders[0], borders[-1]) if len(borders) > 1 else (-math.inf, math.inf)
    return max(float(np.abs(curves.error[(lo < curves.x) & (curves.x <= hi)]).max(initial=0.0)) for curves in tables)


@fit_picture.register
def _formula_picture(fit: InvAct, x_range: tuple[float, float]) -> Markup:
    branches = formulas(fit, *x_range)
    y, g = (np.concatenate([getattr(branch, key) for branch in branches]) for key in ("y", "g"))
    panel = Panel(widened(y.min(), y.max(), 0.02), widened(g.min(), g.max()), 18, 116)
    for branch in branches:
        panel.curve(branch.y, branch.g, "curve exact")
    for branch, kind in zip(branches, _kinds(branches), strict=True):
        panel.curve(branch.y, branch.q, f"curve fit {kind}")
    title = f"The derivative of {fit.entry.function} as a function of its output, and the formula: {fit.label}"
    seen = _largest(branches)
    if seen is None:
        return picture(title, f"{fit.id}-picture", 166, panel.drawn("y", "g(y) and q(y)"))
    below = _errors(branches, seen)
    words = (
        "|q − g|"
        + " / max(1, |g|)" * fit.is_relative
        + "; dashed: proven bound" * any(branch.bound is not None for branch in branches)
    )
    panels = panel.drawn("y", "g(y) and q(y)"), below.drawn("x", words)
    return picture(f"{title}; the error below", f"{fit.id}-picture", 288, *panels)


def _errors(branches: list[Formula], largest: float) -> Panel:
    """Errors against x, on a logarithmic scale, with the proven bounds."""
    top = 10.0 ** math.ceil(math.log10(largest) + 0.05)
    panel = Panel((branches[0].x[0], branches[-1].x[-1]), (DEPTH * top, top), 188, 70, logarithmic=True)
    for branch, kind in zip(branches, _kinds(branches), strict=True):
        panel.curve(branch.x, branch.error, f"curve error {kind}")
        if branch.bound is not None:
            panel.curve(branch.x[[0, -1]], np.full(2, branch.bound), f"curve bound {kind}")
    return panel


def _largest(branches: list[Formula]) -> float | None:
    """The largest error, or None where float64 cannot resolve it."""
    largest = max(float(np.nanmax(branch.error)) for branch in branches)
    return largest if largest > RESOLVED else None


def _kinds(branches: list[Formula]) -> tuple[str, ...]:
    return BRANCH_NAMES if len(branches) == 2 else ("",)
