"""f', its approximation q, and the error, against x and against y."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from actfit.fitting.activations.tape import Array
from actfit.fitting.approximation import Approximation
from actfit.fitting.invact.error_floor import ErrorFloor
from actfit.fitting.invact.exact import derivative_from_output
from actfit.fitting.invact.inputs import on_right
from actfit.fitting.plots.axes import logarithmic, resolved

STILL = 2e-3  # of the span of f': the picture ends where f' changes by less than this beyond it
MARGIN = 0.08  # of the range shown


def error_figure(approximation: Approximation, error_floor: ErrorFloor | None = None, *, log: bool = False) -> Figure:
    """f' and q above, the error f' - q below: on the left against x, on the right against y = f(x).

    Parameters
    ----------
    approximation : Approximation
        The approximation q.
    error_floor : ErrorFloor, optional
        Of a stored output; by default the approximation's own.
    log : bool
        Whether to draw |f' - q| on a logarithmic scale; if q reads a stored y, the largest over all x stored as that y,
        as for the error floor.
    """
    error_floor = error_floor or approximation.error_floor
    x, y = approximation.x, approximation.activation.f(approximation.x)
    figure = Figure(figsize=(10, 6), layout="constrained")
    panels = figure.subplots(2, 2, sharex="col", sharey="row", height_ratios=(3, 2))
    right = np.zeros(x.shape, dtype=np.bool_) if error_floor is None else on_right(error_floor.split, x)
    error, shown = _error(approximation, log), _shown(approximation)
    for at, label, (above, below) in zip((x, y), ("x", "y = f(x)"), panels.T, strict=True):
        above.plot(at, approximation.derivative, color="0.75", linewidth=3, label=f"{approximation.activation.name}′")
        for i, part in enumerate((~right, right)):
            above.plot(at[part], approximation.q[part], color="C0", linewidth=1.2, label="q" if i else None)
            below.plot(at[part], error[part], color="C3", linewidth=0.8, label="error" if i else None)
        if error_floor is not None:
            low, high = _ranges(error_floor, x)
            _draw_floor(below, error_floor, at, (high - low) / 2, right, log)
        if not log:
            below.axhline(0, color="0.6", linewidth=0.6, zorder=0)
        if not log or logarithmic(below, "no error above 1e-15"):
            margin = MARGIN * float(np.ptp(at[shown]))
            below.set_xlim(float(at[shown].min()) - margin, float(at[shown].max()) + margin)
        below.set_xlabel(label)
    panels[0, 0].legend(frameon=False)
    panels[0, 0].set_ylabel("f′ and q")
    panels[1, 0].set_ylabel("|f′ − q|" if log else "f′ − q")
    panels[1, 1].legend(edgecolor="none", fontsize="small", markerscale=3)
    figure.suptitle(_title(approximation), fontsize="large", wrap=True)
    return figure


def _title(approximation: Approximation) -> str:
    lo, hi = approximation.domain
    return (
        f"{approximation.activation.name}′ {approximation.label}\n"
        f"∫(f′−q)²w = {approximation.error:.4g}, max |f′−q| = {approximation.linf:.3g}, "
        f"w = {approximation.weight.label} on [{lo:.4g}, {hi:.4g}]"
    )


def _error(approximation: Approximation, log: bool) -> Array:
    """f' - q at each x; with `log` its size, and if q reads a stored y, the largest over all x stored as that y."""
    error = approximation.derivative - approximation.q
    if not log:
        return error
    error = np.abs(error)
    if approximation.error_floor is not None:
        low, high = _ranges(approximation.error_floor, approximation.x)
        largest = np.maximum(high - approximation.q, approximation.q - low)
        error = np.where(np.isfinite(largest), largest, error)
    return resolved(error)


def _shown(approximation: Approximation) -> slice:
    """The points between which f' moves."""
    derivative = approximation.derivative
    least = STILL * float(np.ptp(derivative))
    moved = np.flatnonzero((np.abs(derivative - derivative[0]) > least) & (np.abs(derivative - derivative[-1]) > least))
    return slice(max(moved[0] - 1, 0), moved[-1] + 2) if len(moved) > 2 else slice(None)


def _ranges(error_floor: ErrorFloor, x: Array) -> tuple[Array, Array]:
    """The least and greatest f' over all inputs stored as the same y as each x; x is rounded first.

    NaN where y is not finite.
    """
    x = error_floor.format.round(x)
    with np.errstate(all="ignore"):
        y = error_floor.outputs(x)
    right, ranges = on_right(error_floor.split, x), np.full((2, *x.shape), np.nan)
    for i, (branch, cells) in enumerate(zip(error_floor.split.branches, error_floor.cells, strict=True)):
        own = np.flatnonzero((right == bool(i)) & np.isfinite(y))
        if error_floor.format.precision <= 16:
            place = np.clip(np.searchsorted(cells.y, y[own]), 0, len(cells.y) - 1)
            own, place = own[cells.y[place] == y[own]], place[cells.y[place] == y[own]]
            ranges[:, own] = cells.low[place], cells.high[place]
        else:  # the cells are a sample: compute the range for every y
            half = error_floor.format.spacing(y[own]) / 2
            ranges[:, own] = np.sort(
                [derivative_from_output(branch, y[own] + shift * half) for shift in (-1.0, 1.0)], axis=0
            )
    return ranges[0], ranges[1]


def _draw_floor(
    axes: Axes, error_floor: ErrorFloor, at: Array, half: Array, right: NDArray[np.bool_], log: bool
) -> None:
    label = f"floor of y in {error_floor.format.name}"
    if log:
        axes.plot(at, resolved(half), ".", color="0.35", markersize=2.5, zorder=3, label=label)
        return
    for i, part in enumerate((~right, right)):  # one by one: against y they cover each other
        order = np.argsort(at[part], kind="stable")
        ends = half[part][order]
        name = label if i else None
        axes.fill_between(at[part][order], -ends, ends, color="0.35", linewidth=0.5, zorder=3, label=name)
