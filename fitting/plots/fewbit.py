"""The picture of a few-bit table."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from actfit.fitting.activations.tape import Array
from actfit.fitting.fewbit.solve import Fit
from actfit.fitting.plots.axes import logarithmic, resolved

POINTS = 4000
UNSEEN = 0.01  # of the error, left out of the picture at each end
MARGIN = 0.15  # of the range shown


def fewbit_figure(fit: Fit) -> Figure:
    """f' and the steps above, the error f' - q below, over the part of the domain that matters."""
    x = _points(fit)
    derivative, steps = fit.activation.df(x), fit.steps(x)
    name = f"{fit.activation.name}′"
    figure = Figure(figsize=(7, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    above.plot(x, derivative, color="0.7", linewidth=3, label=name if len(name) < 32 else "f′")
    above.plot(x, steps, color="C0", linewidth=1.2, label=f"{fit.bits} bit{'s' * (fit.bits > 1)}")
    above.legend(frameon=False)
    below.axhline(0, color="0.6", linewidth=0.6)
    below.plot(x, derivative - steps, color="C3", linewidth=0.9)
    below.set_xlabel("x")
    below.set_ylabel("f′ − q")
    below.set_xlim(*_shown(fit, x))
    levels = len(fit.steps.levels)
    title = f"{name}: {levels} level{'s' * (levels > 1)}, ∫(f′−q)²w = {fit.error.l2_squared:.4g}"
    weight = "" if fit.weight.label == "uniform" else f", w = {fit.weight.label}"
    figure.suptitle(title + weight, fontsize="large", wrap=True)
    return figure


def widths_figure(fits: Sequence[Fit]) -> Figure:
    """The squared error of one function's fits against their bits; one that float64 cannot tell from 0 is not drawn."""
    first = fits[0]
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    widths, errors = [fit.bits for fit in fits], np.array([fit.error.l2_squared for fit in fits])
    axes.plot(widths, resolved(errors), "C0o-")
    if logarithmic(axes, "no error"):
        axes.set_xticks(widths)
        axes.set_xlim(widths[0] - 0.4, widths[-1] + 0.4)
        axes.grid(axis="y", color="0.92")
    lo, hi = first.domain
    axes.set_xlabel("bits kept for each element")
    axes.set_ylabel(f"∫(f′−q)²w on [{lo:g}, {hi:g}]")
    weight = "" if first.weight.label == "uniform" else f", w = {first.weight.label}"
    figure.suptitle(f"{first.activation.name}′{weight}", fontsize="large", wrap=True)
    return figure


def _points(fit: Fit) -> Array:
    """Points to draw at: evenly, and left and right of every border and break, so that steps are vertical.

    The borders and breaks themselves are left out: f' and q may take different values there.
    """
    lo, hi = fit.domain
    breaks = np.concatenate([fit.steps.borders, [lo, hi], fit.activation.breakpoints])
    beside = np.concatenate([np.nextafter(breaks, -np.inf), np.nextafter(breaks, np.inf)])
    points = np.setdiff1d(np.concatenate([np.linspace(lo, hi, POINTS), beside]), breaks)
    return points[(lo < points) & (points < hi)]


def _shown(fit: Fit, x: Array) -> tuple[float, float]:
    """The borders and nearly all of the error, with a margin, as far as the domain goes."""
    (lo, hi), weight = fit.domain, fit.weight
    at, mass = (x[1:] + x[:-1]) / 2, np.diff(x)  # not x itself: a density may be infinite at the domain's ends
    if weight.samples is not None:
        at = weight.samples[(lo <= weight.samples) & (weight.samples <= hi)]
        mass = np.ones_like(at)
    elif weight.density is not None:
        mass = mass * weight.density(at)
    cost = np.cumsum((fit.activation.df(at) - fit.steps(at)) ** 2 * mass)
    places = fit.steps.borders
    if cost[-1] > 0:
        ends = np.searchsorted(cost, [UNSEEN * cost[-1], (1 - UNSEEN) * cost[-1]])
        places = np.concatenate([places, at[ends]])
    if not places.size:
        return lo, hi
    margin = MARGIN * float(np.ptp(places)) or 1.0
    return max(lo, float(places.min()) - margin), min(hi, float(places.max()) + margin)
