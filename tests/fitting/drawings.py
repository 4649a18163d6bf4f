"""What a picture of matplotlib shows: the points of a line, the words of a legend."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes


def drawn(axes: Axes, label: str | None = None) -> tuple[Any, Any]:
    """The line of that label, or the longest one."""
    lines = [line for line in axes.lines if label in (None, line.get_label())]
    line = max(lines, key=lambda line: len(line.get_xdata()))
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def legend(axes: Axes) -> list[str]:
    drawn_legend = axes.get_legend()
    return [text.get_text() for text in drawn_legend.get_texts()] if drawn_legend else []
