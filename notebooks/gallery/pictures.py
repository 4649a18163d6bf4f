"""The pictures: a function with its derivative, a few-bit table with its error, a formula with its error."""

import math

import numpy as np
from markupsafe import Markup

from notebooks.gallery.curves import Formula, formulas, points, table
from notebooks.gallery.fits import Fit, Shelf
from notebooks.gallery.markup import tag
from notebooks.gallery.svg import Panel, picture, widened

RESOLVED = 1e-15  # errors below are those of float64, in which they are computed
DEPTH = 1e-4  # of the largest error, the least that is shown on a logarithmic scale
SIDES = ("left", "right")
SMALL = (120, 64)  # width and height of a thumbnail


def function_picture(shelf: Shelf, x_range: tuple[float, float]) -> Markup:
    """f and f' over the same x."""
    x = points(shelf.activation, *x_range)
    f, slope = shelf.activation.f(x), shelf.activation.df(x)
    panel = Panel(x_range, widened(min(f.min(), slope.min()), max(f.max(), slope.max())), 18, 136)
    panel.curve(x, f, "curve f")
    panel.curve(x, slope, "curve slope")
    return picture(f"{shelf.title} and its derivative", f"{shelf.id}-picture", 184, panel.drawn("x", "f, f′"))


def thumbnail(shelf: Shelf, x_range: tuple[float, float]) -> Markup:
    """f' and its table of 2 bits, where there is one, without axes or a name: it stands beside one."""
    x = points(shelf.activation, *x_range)
    slope = shelf.activation.df(x)
    panel = Panel(x_range, widened(slope.min(), slope.max()), 2, SMALL[1] - 4, left=2, right=SMALL[0] - 2)
    panel.curve(x, slope, "curve exact")
    if shelf.two_bits is not None:
        curves = table(shelf.two_bits, *x_range)
        panel.curve(curves.x, curves.q, "curve fit")
    return tag("svg", *panel.inside, viewBox=f"0 0 {SMALL[0]} {SMALL[1]}", aria_hidden="true")


def fit_picture(fit: Fit, x_range: tuple[float, float]) -> Markup:
    """A fit beside what it approximates, and the error below."""
    return _table_picture(fit, x_range) if fit.is_fewbit else _formula_picture(fit, x_range)


def _table_picture(fit: Fit, x_range: tuple[float, float]) -> Markup:
    curves = table(fit, *x_range)
    values = np.concatenate([curves.slope, curves.q])
    above = Panel(x_range, widened(values.min(), values.max()), 18, 116)
    above.curve(curves.x, curves.slope, "curve exact")
    above.curve(curves.x, curves.q, "curve fit")
    worst = float(np.abs(curves.error).max())
    title = f"The derivative of {fit.entry.function} and its approximation by {fit.setting}"
    if worst == 0:
        return picture(title, f"{fit.id}-picture", 166, above.drawn("x", "f′ and q"))
    below = Panel(x_range, widened(-worst, worst), 156, 70)
    below.curve(curves.x, curves.error, "curve error")
    panels = above.drawn("x", "f′ and q", labelled=False), below.drawn("x", "error f′ − q")
    return picture(f"{title}; the error below", f"{fit.id}-picture", 256, *panels)


def _formula_picture(fit: Fit, x_range: tuple[float, float]) -> Markup:
    sides = formulas(fit, *x_range)
    y, g = (np.concatenate([getattr(side, key) for side in sides]) for key in ("y", "g"))
    panel = Panel(widened(y.min(), y.max(), 0.02), widened(g.min(), g.max()), 18, 116)
    for side in sides:
        panel.curve(side.y, side.g, "curve exact")
    for side, kind in zip(sides, _kinds(sides), strict=True):
        panel.curve(side.y, side.q, f"curve fit {kind}")
    title = f"The derivative of {fit.entry.function} as a function of its output, and the formula: {fit.label}"
    seen = _largest(sides)
    if seen is None:
        return picture(title, f"{fit.id}-picture", 166, panel.drawn("y", "g(y) and q(y)"))
    below = _errors(sides, seen)
    words = (
        "|q − g|"
        + " / max(1, |g|)" * fit.is_relative
        + "; dashed: proven bound" * any(side.bound is not None for side in sides)
    )
    panels = panel.drawn("y", "g(y) and q(y)"), below.drawn("x", words)
    return picture(f"{title}; the error below", f"{fit.id}-picture", 288, *panels)


def _errors(sides: list[Formula], largest: float) -> Panel:
    """Errors against x, on a logarithmic scale, with the proven bounds."""
    top = 10.0 ** math.ceil(math.log10(largest) + 0.05)
    panel = Panel((sides[0].x[0], sides[-1].x[-1]), (DEPTH * top, top), 188, 70, logarithmic=True)
    for side, kind in zip(sides, _kinds(sides), strict=True):
        panel.curve(side.x, side.error, f"curve error {kind}")
        if side.bound is not None:
            panel.curve(side.x[[0, -1]], np.full(2, side.bound), f"curve bound {kind}")
    return panel


def _largest(sides: list[Formula]) -> float | None:
    """The largest error, or None where float64 cannot resolve it."""
    largest = max(float(np.nanmax(side.error)) for side in sides)
    return largest if largest > RESOLVED else None


def _kinds(sides: list[Formula]) -> tuple[str, ...]:
    return SIDES if len(sides) == 2 else ("",)
