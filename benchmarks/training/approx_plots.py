"""The picture of the nets of `benchmarks.training` whose layers save few bits."""

import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.training import rows as training_rows
from benchmarks.training.gradients import NOISE, STATES
from benchmarks.training.rows import AS_TRAINED, TrainingRow
from benchmarks.training.variants import EVERY, FUSED, STOCK

COLOURS = {"approx": "C0", "paper": "C2", "naive": "C3", "narrow": "C1"}


def nets(rows: Sequence[TrainingRow]) -> Figure | None:
    """By net: losses of the batches while training, test errors of all seeds, and errors of gradients by layer."""
    tasks = training_rows.nets(rows)
    if not tasks:
        return None
    figure = Figure(figsize=(4.0 * len(tasks), 10.0), layout="constrained")
    grid = figure.subplots(3, len(tasks), squeeze=False)
    for column, task in enumerate(tasks):
        grid[0][column].set_title(task)
        _losses(grid[0][column], rows, task)
        _errors(grid[1][column], rows, task)
        _gradients(grid[2][column], rows, task)
    grid[0][0].set_ylabel("loss of the batches, mean over seeds, nats")
    grid[2][0].set_ylabel(f"error of the gradient / |g|, {STATES[-1]} weights")
    handles = {
        label: line for axes in grid[:, 0] for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside lower center", frameon=False, fontsize=8, ncols=8)
    return figure


def _style(variant: str) -> dict[str, Any]:
    """One colour for each method; 8 bits are dashed."""
    if variant == STOCK:
        return {"color": "black"}
    method, _, bits = variant.partition("-")
    return {"color": COLOURS[method], "linestyle": "--" if bits == "8" else "-"}


def _losses(axes: Axes, rows: Sequence[TrainingRow], task: str) -> None:
    for variant, by_seed in training_rows.runs(rows, task).items():
        points = list(zip(*(row.results["curve"] for row in by_seed.values()), strict=True))
        steps = [of_seeds[0][0] for of_seeds in points]
        values = [[float("nan") if point[1] is None else point[1] for point in of_seeds] for of_seeds in points]
        axes.semilogy(
            steps, [statistics.fmean(of_seeds) for of_seeds in values], label=variant, linewidth=1.2, **_style(variant)
        )
    axes.set_xlabel("steps")


def _errors(axes: Axes, rows: Sequence[TrainingRow], task: str) -> None:
    """A dot for each seed, a bar for the mean."""
    errors = training_rows.errors(rows, task)
    for place, (name, of_seeds) in enumerate(errors.items()):
        values = [value for value in of_seeds.values() if value is not None]
        colour = _style(name.removesuffix(AS_TRAINED))["color"]
        axes.plot(values, [place] * len(values), "o", color=colour, markersize=4, alpha=0.5)
        if values:
            axes.plot(statistics.fmean(values), place, "|", color="black", markersize=11)
    axes.set_yticks(range(len(errors)), [name.replace(AS_TRAINED, "*") for name in errors], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("test error, % (* tested as trained)")
    axes.set_xlim(left=0)


def _gradients(axes: Axes, rows: Sequence[TrainingRow], task: str) -> None:
    by_variant = training_rows.gradients(rows, task, STATES[-1])
    if not by_variant:
        return
    layers = range(len(by_variant[NOISE]["layers"]))
    axes.semilogy(layers, by_variant[NOISE]["noise"], color="0.6", linewidth=2, label="noise of the batches")
    for variant in EVERY:
        if variant in by_variant and variant != FUSED:
            axes.semilogy(
                layers,
                [error or float("nan") for error in by_variant[variant]["error"]],
                linewidth=1,
                **_style(variant),
            )
    axes.set_xlabel("layer, from the first")
