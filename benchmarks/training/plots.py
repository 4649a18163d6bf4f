"""The pictures of `benchmarks.training`: curves of loss, gradients beside the noise, and peaks."""

import io
import statistics
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from benchmarks.training import rows as training_rows
from benchmarks.training.gradients import NOISE, STATES
from benchmarks.training.rows import TrainingRow
from benchmarks.training.runs import SHARE
from benchmarks.training.variants import COMPILED_PLAN, PLAN, STOCK, VARIANTS, parts

DPI, COLOURS = 100, 255
BAND: dict[str, Any] = {"color": "0.85", "zorder": 0, "label": "stock ± standard deviation between seeds"}


def save(rows: Sequence[TrainingRow], path: Path) -> list[Path]:
    """Write the pictures that there are rows for beside `path`, the file of the rows."""
    written = []
    drawn = {"curves": curves(rows), "gradients": gradients(rows)}
    drawn["peaks"] = peaks(rows)
    for name, figure in drawn.items():
        if figure is not None:
            written.append(path.with_name(f"{path.stem}-{name}.png"))
            _small(figure).save(written[-1], optimize=True)
    return written


def _small(figure: Figure) -> Image.Image:
    """The picture with COLOURS colours only, which takes a third of the bytes."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=DPI)
    return Image.open(drawn).convert("RGB").quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)


def _style(variant: str) -> dict[str, Any]:
    """One colour for each method; lines of fewer bits have wider gaps."""
    method, bits = parts(variant)
    names = ("invact", "forward-ad", "fewbit", "actnn", "recompute")
    if variant == STOCK:
        return {"color": "black"}
    dashes = {"1": ":", "2": "-.", "3": "--", "4": "-"}.get(bits, "-")
    return {"color": f"C{names.index(method)}", "linestyle": dashes}


def curves(rows: Sequence[TrainingRow]) -> Figure | None:
    """Above: loss on what is held out, mean over seeds, and stock's spread. Below: the distance from stock."""
    tasks = training_rows.tasks(rows)
    if not tasks:
        return None
    figure = Figure(figsize=(5.5 * len(tasks), 6.4), layout="constrained")
    grid = figure.subplots(2, len(tasks), squeeze=False, sharex="col")
    for column, task in enumerate(tasks):
        above, below = grid[0][column], grid[1][column]
        by_variant = training_rows.runs(rows, task)
        for variant, by_seed in by_variant.items():
            steps, values = _curve(by_seed)
            style = {**_style(variant), "linewidth": 1.2, "label": variant}
            above.plot(steps, [statistics.fmean(of_seeds) for of_seeds in values], **style)
            if variant == STOCK and len(by_seed) > 1:
                _band(above, below, steps, values)
            elif variant != STOCK:
                shared = {seed: row for seed, row in by_variant[STOCK].items() if seed in by_seed}
                pairs = zip(_curve({seed: by_seed[seed] for seed in shared})[1], _curve(shared)[1], strict=True)
                differences = [statistics.fmean(a) - statistics.fmean(b) for a, b in pairs]
                below.plot(steps, differences, **style)
        above.set(title=task, ylabel=f"loss on 1/{SHARE} of what is held out, nats", yscale="log")
        below.set(xlabel="steps", ylabel="distance from stock, mean over seeds")
    _legend(figure, grid[0][0])
    return figure


def _curve(by_seed: dict[int, TrainingRow]) -> tuple[list[int], list[list[float]]]:
    """Steps, and for each the held-out losses of all seeds, NaN if not finite."""
    points = list(zip(*(row.results["curve"] for row in by_seed.values()), strict=True))
    values = [[point[2] if point[2] is not None else float("nan") for point in of_seeds] for of_seeds in points]
    return [of_seeds[0][0] for of_seeds in points], values


def _band(above: Axes, below: Axes, steps: Sequence[int], values: Sequence[Sequence[float]]) -> None:
    means, spreads = [statistics.fmean(column) for column in values], [statistics.stdev(column) for column in values]
    pairs = list(zip(means, spreads, strict=True))
    above.fill_between(
        steps, [mean - column for mean, column in pairs], [mean + column for mean, column in pairs], **BAND
    )
    below.fill_between(steps, [-column for column in spreads], spreads, **BAND)
    if 0 < spreads[-1] < float("inf"):
        below.set_yscale("symlog", linthresh=spreads[-1])  # so that large differences at first do not hide the end


def _legend(figure: Figure, axes: Axes) -> None:
    """One legend for all, below."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", frameon=False, fontsize=8, ncols=6)


def gradients(rows: Sequence[TrainingRow]) -> Figure | None:
    """The error of gradients by layer beside the noise of batches; exact variants do not show on a log scale."""
    tasks = [task for task in training_rows.tasks(rows) if training_rows.gradients(rows, task, STATES[0])]
    if not tasks:
        return None
    figure = Figure(figsize=(11, 3.9 * len(tasks)), layout="constrained")
    grid = figure.subplots(len(tasks), len(STATES), squeeze=False, sharex="row", sharey="row")
    for row, task in zip(grid, tasks, strict=True):
        for axes, state in zip(row, STATES, strict=True):
            by_variant = training_rows.gradients(rows, task, state)
            layers = range(len(by_variant[NOISE]["layers"]))
            axes.semilogy(layers, by_variant[NOISE]["noise"], color="black", linewidth=2, label="noise of the batches")
            for variant in VARIANTS:
                errors = [error or float("nan") for error in by_variant.get(variant, {}).get("error", [])]
                if any(error == error for error in errors):
                    axes.semilogy(layers, errors, label=variant, linewidth=1, **_style(variant))
            axes.set_title(f"{task}, {state} weights")
        row[0].set_ylabel("error of the gradient / |g|")
        for axes in row:
            axes.set_xticks(layers, by_variant[NOISE]["layers"], rotation=90, fontsize=5)
    _legend(figure, grid[0][0])
    return figure


TIMES = (0.75, 3.75)  # the range of the colours, × stock's time
BESIDE: dict[str, Any] = {"textcoords": "offset points", "xytext": (5, 4), "fontsize": 8}
MARKERS = {
    "compiled": "P",
    "exact": "p",
    "recompute": "X",
    "hook": "v",
    "coded": "s",
    "compress": "o",
    "stochastic": "D",
    PLAN: "*",
    COMPILED_PLAN: "^",
}


def peaks(rows: Sequence[TrainingRow]) -> Figure | None:
    """For models that encode every saved tensor: peak of a step against final loss less stock's.

    A point's shape is its method, its colour the time, the number beside it the bits or the plan's share of bytes.
    """
    tasks = training_rows.coded(rows)
    if not tasks:
        return None
    columns = min(2, len(tasks))
    figure = Figure(figsize=(5.2 * columns, 4.2 * -(-len(tasks) // columns)), layout="constrained")
    grid = figure.subplots(-(-len(tasks) // columns), columns, squeeze=False)
    methods = dict.fromkeys(parts(variant)[0] for task in tasks for variant in training_rows.compared(rows, task))
    for axes, task in zip(grid.flat, tasks, strict=False):
        _peaks(axes, rows, task)
    for axes in grid.flat[len(tasks) :]:
        axes.remove()
    for axes in grid[:, 0]:
        axes.set_ylabel("final loss less stock's, in margins (grey: within)")
    times = ScalarMappable(Normalize(*TIMES), "viridis")
    figure.colorbar(times, ax=figure.axes, label="time of a training, × stock", extend="both", shrink=0.6)
    shapes = [Line2D([], [], marker=MARKERS[method], color="0.5", linestyle="", label=method) for method in methods]
    figure.legend(handles=shapes, loc="outside lower center", frameon=False, fontsize=8, ncols=len(methods))
    return figure


def _peaks(axes: Axes, rows: Sequence[TrainingRow], task: str) -> None:
    by_variant, compared = training_rows.runs(rows, task), training_rows.compared(rows, task)
    whole = next(iter(by_variant[STOCK].values())).results["peak"]
    axes.axhspan(-1, 1, color="0.9", zorder=0)
    for variant, comparison in compared.items():
        peak = next(iter(by_variant[variant].values())).results["peak"] / whole
        margin = comparison.margin or float("nan")
        value, half = comparison.difference / margin, (comparison.high - comparison.difference) / margin
        if isnan(value):
            axes.annotate(f"{variant}: diverged", (peak, 0.95), xycoords=("data", "axes fraction"), fontsize=7)
            continue
        method, number = parts(variant)
        axes.errorbar(peak, value, yerr=half, fmt="none", ecolor="0.5", linewidth=1)
        time = training_rows.time_ratio(by_variant, variant)
        shape = {"marker": MARKERS[method], "edgecolors": "black", "linewidths": 0.5, "zorder": 3}
        axes.scatter([peak], [value], c=[time], vmin=TIMES[0], vmax=TIMES[1], cmap="viridis", **shape)
        axes.annotate(f"1/{number}" if method in (PLAN, COMPILED_PLAN) else number, (peak, value), **BESIDE)
    axes.set(title=task, xlabel="peak of a step, × stock", xlim=(0, 1.1))
    axes.set_yscale("symlog", linthresh=1)  # linear within the margin
