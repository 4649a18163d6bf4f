"""The least error of f'(x) from y = f(x), rounded to 16 bits, and one of K codes of x, whatever the code may be.

Given y, a code sorts the inputs that are stored as y into K parts, and the guess of each part is the mean of f', or
for the largest error the middle. For either aim some best parts are intervals of f' (Fisher 1958): parts that overlap
in f' can be exchanged until they do not, without a loss. So it is enough to cut the inputs of each y, ordered by f'.

`best` is the floor of two bits. `best_by_branch` is that of the branch and one more bit. The codes that kernels store
(`error_floor`) lie above both.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fitting.activations import Activation
from fitting.activations.tape import Array
from fitting.errors import InputError
from fitting.invact.branches import split
from fitting.invact.formats import get_format
from fitting.invact.inputs import Inputs, every_input
from fitting.weights import Weight


@dataclass(frozen=True)
class CodeFloor:
    """No code of its kind has a root mean square error below `rms`, nor a largest error below `linf`."""

    rms: float
    linf: float


def best(activation: Activation, dtype: str, weight: Weight, codes: int = 4) -> CodeFloor:
    """The floor of any function of x with `codes` values, stored beside y.

    Parameters
    ----------
    activation : Activation
        The function f, with at most two monotone branches.
    dtype : str
        Of x and y: "bfloat16" or "float16".
    weight : Weight
        The distribution of x; it need not be normalised.
    codes : int
        Values that the code may have: 4 for two bits.

    Raises
    ------
    InputError
        If the dtype has more than 16 bits, or f more than two branches.
    """
    inputs, outputs = _inputs(activation, dtype, weight)
    return _floor(inputs, outputs, codes)


def best_by_branch(activation: Activation, dtype: str, weight: Weight, codes: int = 2) -> CodeFloor:
    """As `best`, of a code with `codes` values beside y and the branch of x."""
    inputs, outputs = _inputs(activation, dtype, weight)
    return _floor(inputs, outputs + 1j * inputs.right, codes)


def _inputs(activation: Activation, dtype: str, weight: Weight) -> tuple[Inputs, Array]:
    """The inputs, and what each is stored as."""
    format_ = get_format(dtype)
    if format_.precision > 16:
        raise InputError(f"dtype must be bfloat16 or float16, whose numbers can be listed, got {dtype!r}")
    inputs = every_input(split(activation), format_, weight)
    return inputs, format_.round(inputs.f)


def _floor(inputs: Inputs, known: Array, codes: int) -> CodeFloor:
    """The floor of codes beside `known`, which may be complex."""
    square, linf = 0.0, 0.0
    for derivative, mass in _groups(inputs, known):
        square += least_square(derivative, mass, codes)
        if not _holds(derivative, 2 * linf, codes):  # else this group changes nothing
            linf = least_range(derivative, codes) / 2
    return CodeFloor(math.sqrt(square / float(inputs.mass.sum())), linf)


def _groups(inputs: Inputs, known: Array) -> Iterator[tuple[Array, Array]]:
    """f', increasing, and the mass of inputs that share one `known`; equal f' count once."""
    order = np.lexsort((inputs.derivative, known))
    known, derivative, mass = known[order], inputs.derivative[order], inputs.mass[order]
    borders = np.concatenate([[0], np.flatnonzero(np.diff(known)) + 1, [len(known)]])
    of_several = np.flatnonzero(np.diff(borders) > 1)  # one input alone has no error
    for begin, end in zip(borders[of_several], borders[of_several + 1], strict=True):
        values, places = np.unique(derivative[begin:end], return_inverse=True)
        yield values, np.asarray(np.bincount(places, mass[begin:end]), dtype=np.float64)


def least_square(values: Array, mass: Array, parts: int) -> float:
    """The least sum of mass * (value - mean of its part)**2, by dynamic programming over the last cut.

    `values` increase. Where no mass falls it is 0.
    """
    held = mass > 0
    values, mass = values[held], mass[held]
    if len(values) <= parts:
        return 0.0
    values = values - np.average(values, weights=mass)  # sums of squares cancel less
    total, first, second = (np.concatenate([[0.0], np.cumsum(mass * values**power)]) for power in range(3))
    with np.errstate(invalid="ignore", divide="ignore"):  # empty parts
        weights, sums = total[None, :] - total[:, None], first[None, :] - first[:, None]
        spread = second[None, :] - second[:, None] - sums**2 / weights
    size = len(values) + 1
    spread = np.where(np.arange(size)[:, None] < np.arange(size)[None, :], np.maximum(spread, 0.0), math.inf)
    least = spread[0]  # of the first n values as one part
    for _ in range(parts - 1):
        least = np.minimum(least, np.min(least[:, None] + spread, axis=0))
    return float(least[-1])


def least_range(values: Array, parts: int) -> float:
    """The least length that `parts` intervals need to hold all `values`, which increase."""
    candidates = np.unique(values[None, :] - values[:, None])
    candidates = candidates[candidates >= 0]
    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _holds(values, float(candidates[middle]), parts) else (middle + 1, high)
    return float(candidates[low])


def _holds(values: Array, length: float, parts: int) -> bool:
    """Whether so many intervals of this length hold all values: each begins at the first that is left."""
    begin = 0
    for _ in range(parts):
        begin += int(np.searchsorted(values[begin:] - values[begin], length, side="right"))
        if begin == len(values):
            return True
    return False
