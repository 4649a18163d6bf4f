"""Pictures of fits. The only module here that imports matplotlib; draws on Figure objects, never on pyplot's state."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fitting.activations.tape import Array
from fitting.errors import InputError
from fitting.fewbit.solve import Fit
from fitting.invact import solve as invact
from fitting.invact.bound import RESOLVED
from fitting.invact.branches import Side
from fitting.invact.exact import slope_of_output
from fitting.invact.floor import Floor
from fitting.invact.rows import Row

FORMATS = (".png", ".svg", ".pdf")
POINTS = 4000
UNSEEN = 0.01  # of the error, left out of the picture on each side
MARGIN = 0.15  # of what is shown
SPAN = 8.0  # of x, in pictures of functions of y


def check_path(path: Path) -> None:
    """Raises `InputError` for a suffix that is not in `FORMATS`."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"plot must end in one of {', '.join(FORMATS)}, got {str(path)!r}")


def fewbit_figure(fit: Fit) -> Figure:
    """f' and the steps above, the error f' - q below, over the part of the domain that matters."""
    x = _points(fit)
    slope, steps = fit.activation.df(x), fit.steps(x)
    name = f"{fit.activation.name}′"
    figure = Figure(figsize=(7, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    above.plot(x, slope, color="0.7", linewidth=3, label=name if len(name) < 32 else "f′")
    above.plot(x, steps, color="C0", linewidth=1.2, label=f"{fit.bits} bit{'s' * (fit.bits > 1)}")
    above.legend(frameon=False)
    below.axhline(0, color="0.6", linewidth=0.6)
    below.plot(x, slope - steps, color="C3", linewidth=0.9)
    below.set_xlabel("x")
    below.set_ylabel("f′ − q")
    below.set_xlim(*_shown(fit, x))
    levels = len(fit.steps.levels)
    title = f"{name}: {levels} level{'s' * (levels > 1)}, ∫(f′−q)²w = {fit.error.l2_squared:.4g}"
    weight = "" if fit.weight.label == "uniform" else f", w = {fit.weight.label}"
    figure.suptitle(title + weight, fontsize="large", wrap=True)
    return figure


def _points(fit: Fit) -> Array:
    """Where to draw: evenly, and on both sides of every border and break, which makes them upright.

    Not at these themselves, where f' and q may each take the value of another side.
    """
    lo, hi = fit.domain
    breaks = np.concatenate([fit.steps.borders, [lo, hi], fit.activation.breakpoints])
    sides = np.concatenate([np.nextafter(breaks, -np.inf), np.nextafter(breaks, np.inf)])
    points = np.setdiff1d(np.concatenate([np.linspace(lo, hi, POINTS), sides]), breaks)
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


def invact_figure(fit: invact.Fit) -> Figure:
    """g and its formulas q against y, |q - g| against x with its proven bound, and the front with the choice on it.

    Errors below RESOLVED, which float64 does not tell from 0, are left out.
    """
    sides, names = fit.floor.split.sides, _sides(fit.floor)
    figure = Figure(figsize=(10, 5.5), layout="constrained")
    panels = figure.subplot_mosaic([["g", "front"], ["error", "front"]], width_ratios=(3, 2), height_ratios=(3, 2))
    above, below = panels["g"], panels["error"]
    for i, (side, name, formula, bound) in enumerate(zip(sides, names, fit.chosen.candidates, fit.bounds, strict=True)):
        x = _inside(side)
        y = fit.activation.f(x)
        g, q, color = slope_of_output(side, y), formula(y), f"C{i}"
        above.plot(y, g, color="0.75", linewidth=3, label=None if i else "g")
        above.plot(y, q, color=color, linewidth=1.2, label=f"q {name}".strip())
        below.plot(x, _resolved(np.abs(q - g)), color=color, linewidth=0.9)
        bounds = _resolved(np.full(2, bound.upper))
        below.plot(x[[0, -1]], bounds, "--", color=color, linewidth=0.9, label=f"bound {name}".strip())
    above.legend(frameon=False)
    above.set_xlabel("y")
    below.set_xlabel("x")
    below.set_ylabel("|q − g|")
    if _logarithmic(below, "no error above 1e-15"):
        below.legend(frameon=False, fontsize="small")
    _draw_front(panels["front"], fit)
    price = fit.chosen.price.total
    title = f"{fit.activation.name}′ from y in {fit.dtype}: {price} instructions, RMS error {fit.chosen.rms:.4g}"
    figure.suptitle(title, fontsize="large", wrap=True)
    return figure


def _draw_front(axes: Axes, fit: invact.Fit) -> None:
    """The error that the fit's rule is about, against instructions."""

    def place(*rows: Row) -> tuple[list[int], list[float]]:
        errors = [row.rms if fit.rule.by_rms else row.pointwise for row in rows]
        return [row.price.total for row in rows], _resolved(np.array(errors)).tolist()

    axes.plot(*place(*fit.front), color="0.5", marker=".", linewidth=0.8, label="front")
    axes.plot(*place(fit.chosen), "C3*", markersize=12, label="chosen")
    if fit.paper is not None:
        axes.plot(*place(fit.paper), "kx", label="paper")
    if fit.rule.by_rms:
        axes.axhline(fit.floor.rms, color="0.6", linestyle=":", linewidth=0.9, label="floor")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    left, right = axes.get_xlim()
    axes.set_xlim(min(left, fit.chosen.price.total - 1), max(right, fit.chosen.price.total + 1))
    axes.set_xlabel("instructions")
    axes.set_ylabel("RMS error" if fit.rule.by_rms else "largest |q − g| in float32")
    if _logarithmic(axes, "no error above 1e-15"):
        axes.legend(frameon=False)


def floor_figure(floor: Floor) -> Figure:
    """Half the range of f' over all x that are stored as one y, against that y: what no formula can get below.

    Outputs that tell f' exactly are left out.
    """
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for i, (side, name, cells) in enumerate(zip(floor.split.sides, _sides(floor), floor.cells, strict=True)):
        ends = np.sort(floor.split.activation.f(_inside(side)[[0, -1]]))
        shown = (ends[0] <= cells.y) & (cells.y <= ends[1])
        half = np.where(cells.half > 0, cells.half, np.nan)
        axes.plot(cells.y[shown], half[shown], ".", color=f"C{i}", markersize=2, label=name or "all x")
    if floor.rms > 0:
        axes.axhline(floor.linf, color="0.6", linestyle="--", linewidth=0.9, label=f"largest {floor.linf:.4g}")
        axes.axhline(floor.rms, color="0.6", linestyle=":", linewidth=0.9, label=f"RMS {floor.rms:.4g}")
    axes.set_xlabel("y")
    axes.set_ylabel("half the range of f′")
    if _logarithmic(axes, "0: every stored y tells f′"):
        axes.legend(frameon=False, fontsize="small")
    figure.suptitle(f"{floor.split.activation.name}′ from y in {floor.format.name}: the information floor", wrap=True)
    return figure


def _resolved(errors: Array) -> Array:
    return np.where(np.isfinite(errors) & (errors > RESOLVED), errors, np.nan)


def _logarithmic(axes: Axes, otherwise: str) -> bool:
    """Whether something is drawn, now on a logarithmic scale; if nothing is, `otherwise` stands there."""
    drawn = any(np.isfinite(np.asarray(line.get_ydata(), dtype=np.float64)).any() for line in axes.lines)
    if drawn:
        axes.set_yscale("log")
    else:
        axes.text(0.5, 0.5, otherwise, transform=axes.transAxes, ha="center", va="center")
        axes.set(xticks=[], yticks=[])
    return drawn


def _sides(floor: Floor) -> tuple[str, ...]:
    return ("left", "right") if len(floor.split.sides) == 2 else ("",)


def _inside(side: Side) -> Array:
    """x of a side within SPAN of its finite ends, or of 0: even, and dense where it meets the other."""
    lo = side.lo if np.isfinite(side.lo) else min(-SPAN, side.hi - SPAN)
    hi = side.hi if np.isfinite(side.hi) else max(SPAN, side.lo + SPAN)
    near = np.geomspace(1e-6, 1.0, POINTS // 8) * (hi - lo)
    ends = [lo + near] * bool(np.isfinite(side.lo)) + [hi - near] * bool(np.isfinite(side.hi))
    points = np.unique(np.concatenate([np.linspace(lo, hi, POINTS), *ends]))
    return points[(lo < points) & (points < hi)]


def save(figure: Figure, path: Path) -> None:
    """Write the picture whole or not at all, without a date in it. Raises OSError where it cannot be written."""
    path = path.resolve()  # a link stays, and what it points to is written
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())
    try:
        with matplotlib.rc_context({"svg.hashsalt": "actfit"}):  # names in the file are drawn by lot otherwise
            figure.savefig(partial, dpi=150, metadata=metadata)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
