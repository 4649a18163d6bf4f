"""Pictures of formulas of the output, and of their error floor."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from actfit.fitting.activations.tape import Array
from actfit.fitting.invact.branches import Branch
from actfit.fitting.invact.error_floor import ErrorFloor
from actfit.fitting.invact.exact import derivative_from_output
from actfit.fitting.invact.front import Row
from actfit.fitting.invact.solve import Fit
from actfit.fitting.plots.axes import logarithmic, resolved

POINTS = 4000
SPAN = 8.0  # of x, in pictures of functions of y


def invact_figure(fit: Fit) -> Figure:
    """g and its formulas q against y, |q - g| against x with its proven bound, and the front with the selected row.

    Errors below RESOLVED, which float64 does not tell from 0, are left out.
    """
    branches, names = fit.error_floor.split.branches, _names(fit.error_floor)
    figure = Figure(figsize=(10, 5.5), layout="constrained")
    panels = figure.subplot_mosaic([["g", "front"], ["error", "front"]], width_ratios=(3, 2), height_ratios=(3, 2))
    above, below = panels["g"], panels["error"]
    for i, (branch, name, formula, bound) in enumerate(
        zip(branches, names, fit.best.candidates, fit.bounds, strict=True)
    ):
        x = _inside(branch)
        y = fit.activation.f(x)
        g, q, color = derivative_from_output(branch, y), formula(y), f"C{i}"
        above.plot(y, g, color="0.75", linewidth=3, label=None if i else "g")
        above.plot(y, q, color=color, linewidth=1.2, label=f"q {name}".strip())
        below.plot(x, resolved(np.abs(q - g)), color=color, linewidth=0.9)
        bounds = resolved(np.full(2, bound.upper))
        below.plot(x[[0, -1]], bounds, "--", color=color, linewidth=0.9, label=f"bound {name}".strip())
    above.legend(frameon=False)
    above.set_xlabel("y")
    below.set_xlabel("x")
    below.set_ylabel("|q − g|")
    if logarithmic(below, "no error above 1e-15"):
        below.legend(frameon=False, fontsize="small")
    _draw_front(panels["front"], fit)
    price = fit.best.price.total
    stored = _stored(fit.error_floor)
    title = f"{fit.activation.name}′ from y in {stored}: {price} instructions, RMS error {fit.best.rms:.4g}"
    figure.suptitle(title, fontsize="large", wrap=True)
    return figure


def _draw_front(axes: Axes, fit: Fit) -> None:
    """The front: the error that the fit's rule limits, against instructions."""

    def place(*rows: Row) -> tuple[list[int], list[float]]:
        errors = [row.rms if fit.rule.by_rms else row.pointwise for row in rows]
        return [row.price.total for row in rows], resolved(np.array(errors)).tolist()

    axes.plot(*place(*fit.front), color="0.5", marker=".", linewidth=0.8, label="front")
    axes.plot(*place(fit.best), "C3*", markersize=12, label="chosen")
    if fit.paper is not None:
        axes.plot(*place(fit.paper), "kx", label="paper")
    if fit.rule.by_rms:
        axes.axhline(fit.error_floor.rms, color="0.6", linestyle=":", linewidth=0.9, label="floor")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    left, right = axes.get_xlim()
    axes.set_xlim(min(left, fit.best.price.total - 1), max(right, fit.best.price.total + 1))
    axes.set_xlabel("instructions")
    axes.set_ylabel("RMS error" if fit.rule.by_rms else "largest |q − g| in float32")
    if logarithmic(axes, "no error above 1e-15"):
        axes.legend(frameon=False)


def floor_figure(error_floor: ErrorFloor) -> Figure:
    """Half the range of f' over all x stored as the same y, against y: no formula of y has a smaller error.

    Outputs that determine f' exactly are left out.
    """
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for i, (branch, name, cells) in enumerate(
        zip(error_floor.split.branches, _names(error_floor), error_floor.cells, strict=True)
    ):
        ends = np.sort(error_floor.split.activation.f(_inside(branch)[[0, -1]]))
        shown = (ends[0] <= cells.y) & (cells.y <= ends[1])
        half = np.where(cells.half > 0, cells.half, np.nan)
        axes.plot(cells.y[shown], half[shown], ".", color=f"C{i}", markersize=2, label=name or "all x")
    if error_floor.rms > 0:
        axes.axhline(
            error_floor.linf, color="0.6", linestyle="--", linewidth=0.9, label=f"largest {error_floor.linf:.4g}"
        )
        axes.axhline(error_floor.rms, color="0.6", linestyle=":", linewidth=0.9, label=f"RMS {error_floor.rms:.4g}")
    axes.set_xlabel("y")
    axes.set_ylabel("half the range of f′")
    if logarithmic(axes, "0: every stored y tells f′"):
        axes.legend(frameon=False, fontsize="small")
    figure.suptitle(
        f"{error_floor.split.activation.name}′ from y in {_stored(error_floor)}: the information floor", wrap=True
    )
    return figure


def _inside(branch: Branch) -> Array:
    """Points of a branch within SPAN of its finite ends, or of 0: even, and dense where it meets the other branch."""
    lo = branch.lo if np.isfinite(branch.lo) else min(-SPAN, branch.hi - SPAN)
    hi = branch.hi if np.isfinite(branch.hi) else max(SPAN, branch.lo + SPAN)
    near = np.geomspace(1e-6, 1.0, POINTS // 8) * (hi - lo)
    ends = [lo + near] * bool(np.isfinite(branch.lo)) + [hi - near] * bool(np.isfinite(branch.hi))
    points = np.unique(np.concatenate([np.linspace(lo, hi, POINTS), *ends]))
    return points[(lo < points) & (points < hi)]


def _stored(error_floor: ErrorFloor) -> str:
    return f"{error_floor.format.name}{' and 2 bits' * (error_floor.bits == 2)}"


def _names(error_floor: ErrorFloor) -> tuple[str, ...]:
    return ("left", "right") if len(error_floor.split.branches) == 2 else ("",)
