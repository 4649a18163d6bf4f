"""Bytes saved for backward by each module, before and after."""

from collections.abc import Mapping

from matplotlib.figure import Figure

UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
NAME = 48  # characters of a name at most


def memory_figure(before: Mapping[str, int], after: Mapping[str, int], title: str, rows: int = 10) -> Figure:
    """A pair of bars for each of the `rows` that save most, for the rest together, and for all.

    Parameters
    ----------
    before, after : mapping of str to int
        Bytes by the name of the module that saves them.
    title : str
        Above the picture.
    rows : int
        Number of pairs, without the last two.
    """
    names = sorted({*before, *after}, key=lambda name: (-max(before.get(name, 0), after.get(name, 0)), name))
    shown, rest = names[:rows], names[rows:]
    labels = [_short(name) for name in shown] + [f"{len(rest)} more"] * bool(rest) + ["all"]
    columns = []
    for saved in (before, after):
        others = [sum(saved.get(name, 0) for name in rest)] * bool(rest)
        columns.append([saved.get(name, 0) for name in shown] + others + [sum(saved.values())])
    unit, unit_name = next((unit for unit in UNITS if max(columns[0][-1], columns[1][-1]) >= 10 * unit[0]), UNITS[-1])
    figure = Figure(figsize=(9, 1.4 + 0.42 * len(labels)), layout="constrained")
    axes = figure.subplots()
    for shift, color, label, counts in zip((-0.19, 0.19), ("0.7", "C0"), ("before", "after"), columns, strict=True):
        values = [count / unit for count in counts]
        places = [i + shift for i in range(len(labels))]
        bars = axes.barh(places, values, height=0.38, color=color, label=label)
        axes.bar_label(
            bars, [f"{value:.3g}" if value < 100 else f"{value:.0f}" for value in values], padding=3, fontsize="small"
        )
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.axhline(len(labels) - 1.5, color="0.6", linewidth=0.6)
    axes.set_xlabel(f"{unit_name} kept for backward")
    axes.legend(frameon=False, loc="center right")
    figure.suptitle(title, fontsize="large", wrap=True)
    return figure


def _short(name: str) -> str:
    """The name's end, which tells more than its beginning."""
    return name if len(name) <= NAME else "…" + name[1 - NAME :]
