"""Bytes of a step of training, for each way to train."""

from collections.abc import Mapping

from matplotlib.figure import Figure

UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def memory_figure(peak: Mapping[str, int], kept: Mapping[str, int], title: str) -> Figure:
    """A pair of bars for each way to train.

    Parameters
    ----------
    peak, kept : mapping of str to int
        Bytes at the peak of a step, and kept for backward, by the name of the way.
    title : str
        Above the picture.
    """
    unit, unit_name = next((unit for unit in UNITS if max(peak.values(), default=0) >= 10 * unit[0]), UNITS[-1])
    figure = Figure(figsize=(9, 1.4 + 0.5 * len(kept)), layout="constrained")
    axes = figure.subplots()
    for shift, color, label, counts in (
        (-0.19, "0.7", "peak of a step", peak),
        (0.19, "C0", "kept for backward", kept),
    ):
        values = [counts[way] / unit for way in kept]
        bars = axes.barh([i + shift for i in range(len(kept))], values, height=0.38, color=color, label=label)
        axes.bar_label(
            bars, [f"{value:.3g}" if value < 100 else f"{value:.0f}" for value in values], padding=3, fontsize="small"
        )
    axes.set_yticks(range(len(kept)), list(kept))
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(unit_name)
    axes.legend(frameon=False, loc="lower right")
    figure.suptitle(title, fontsize="large", wrap=True)
    return figure
