"""Every input of a 16-bit format: how often it occurs, its branch, f and f' there."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actfit.fitting.activations.tape import Array
from actfit.fitting.invact.branches import Split
from actfit.fitting.invact.formats import Format
from actfit.fitting.weights import Weight


@dataclass(frozen=True)
class Inputs:
    """The inputs whose output and f' are finite. All attributes are arrays of shape (n,), float64 but for `right`."""

    x: Array  # the inputs, increasing
    mass: Array  # how often each occurs; not normalised
    # f, derivative: f(x), not rounded, and f'(x)
    f: Array
    derivative: Array
    right: NDArray[np.bool_]  # bool: whether x is on the right branch


def every_input(parts: Split, format_: Format, weight: Weight) -> Inputs:
    """The inputs of a format of 16 bits or less."""
    x = format_.numbers()
    mass, f, derivative = masses(x, weight, format_), parts.activation.f(x), parts.activation.df(x)
    known = np.isfinite(format_.round(f)) & np.isfinite(derivative)
    right = on_right(parts, x)
    return Inputs(x[known], mass[known], f[known], derivative[known], right[known])


def on_right(parts: Split, x: Array) -> NDArray[np.bool_]:
    """The bit at inputs x (any shape): whether x is on the right branch; all False where there is one branch."""
    if parts.border is None:
        return np.zeros(x.shape, dtype=np.bool_)
    return x > parts.border if parts.border_is_left else x >= parts.border


def masses(x: Array, weight: Weight, format_: Format) -> Array:
    """How often each number occurs when a draw from `weight` is rounded to it."""
    if weight.samples is not None:
        counts = np.zeros_like(x)
        np.add.at(counts, np.searchsorted(x, format_.round(np.clip(weight.samples, x[0], x[-1]))), 1.0)
        return counts
    width = np.gradient(x)
    lo, hi = weight.domain
    inside = (lo <= x) & (x <= hi)
    density = weight.density(np.where(inside, x, (lo + hi) / 2)) if weight.density is not None else np.ones_like(x)
    return np.where(inside & np.isfinite(density), density * width, 0.0)
