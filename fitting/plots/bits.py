"""The squared error against the bits saved for each element."""

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from actfit.fitting.activations.tape import Array
from actfit.fitting.approximation import Comparison

COLUMNS = 4
ERROR = "∫(f′−q)² on [−10, 10]"
ASIDE = 0.2  # marks are moved by so much of a bit, so that they do not cover others
MARKS = {"bfloat16": "s", "float16": "D", "float32": "^"}


def bits_figure(comparison: Comparison) -> Figure:
    """One function: both kinds of tables, formulas of the output, and the papers' numbers."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    _draw(axes, comparison)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.set_xlabel("bits kept for each element")
    axes.set_ylabel(ERROR)
    figure.suptitle(f"{comparison.activation.name}′", fontsize="large")
    return figure


def overview_figure(comparisons: Sequence[Comparison]) -> Figure:
    """The same for many functions, on one scale."""
    lines = -(-len(comparisons) // COLUMNS)
    figure = Figure(figsize=(10, 1 + 1.9 * lines), layout="constrained")
    panels = figure.subplots(lines, COLUMNS, sharex=True, sharey=True, squeeze=False)
    legend: dict[str, Artist] = {}
    for axes, comparison in zip(panels.flat, comparisons, strict=False):
        _draw(axes, comparison)
        axes.set_title(f"{comparison.activation.name}′", fontsize="medium")
        handles, labels = axes.get_legend_handles_labels()
        legend |= {label: handle for handle, label in zip(handles, labels, strict=True)}
    for axes in panels.flat[len(comparisons) :]:
        axes.set_axis_off()
    figure.legend(list(legend.values()), list(legend), loc="outside upper center", ncols=3, frameon=False)
    figure.supxlabel("bits kept for each element", fontsize="medium")
    figure.supylabel(ERROR, fontsize="medium")
    return figure


def _draw(axes: Axes, comparison: Comparison) -> None:
    for label, errors, color, mark, size, width in (
        ("FewBit, contiguous", comparison.contiguous, "C1", "o", 7.0, 3.0),
        ("FewBit, shared levels", comparison.shared, "C0", "o", 4.0, 1.5),
        ("FewBit paper, Table 1", comparison.printed, "k", "x", 8.0, 0.0),
    ):
        points = list(errors), _positive(list(errors.values()))
        axes.plot(*points, color=color, marker=mark, markersize=size, linewidth=width, label=label)
    for dtype, (bits, error) in comparison.outputs.items():
        axes.plot(bits, error, MARKS[dtype], color="C2", markersize=6, label=f"InvAct, y in {dtype}")
    for dtype, (bits, error) in comparison.paper.items():
        label = f"InvAct paper, y in {dtype}"
        axes.plot(bits + ASIDE, error, MARKS[dtype], color="k", fillstyle="none", markersize=6, label=label)
    axes.set_yscale("log")
    last = max(comparison.shared)
    axes.set_xticks(range(last + 1))
    axes.set_xlim(-0.4, last + 0.4)
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)


def _positive(errors: Sequence[float]) -> Array:
    """`errors` with NaN, which is not drawn, for 0."""
    return np.where(np.array(errors) > 0, errors, np.nan)
