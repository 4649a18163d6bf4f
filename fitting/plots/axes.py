"""Helpers for pictures of errors."""

import numpy as np
from matplotlib.axes import Axes

from actfit.fitting.activations.tape import Array
from actfit.fitting.invact.proof import RESOLVED


def resolved(errors: Array) -> Array:
    """`errors`, where NaN, which is not drawn, replaces those that float64 cannot tell from 0."""
    return np.where(np.isfinite(errors) & (errors > RESOLVED), errors, np.nan)


def logarithmic(axes: Axes, otherwise: str) -> bool:
    """Make the scale logarithmic if something is drawn, else write `otherwise`. Returns whether something is drawn."""
    drawn = any(np.isfinite(np.asarray(line.get_ydata(), dtype=np.float64)).any() for line in axes.lines)
    if drawn:
        axes.set_yscale("log")
    else:
        axes.text(0.5, 0.5, otherwise, transform=axes.transAxes, ha="center", va="center")
        axes.set(xticks=[], yticks=[])
    return drawn
