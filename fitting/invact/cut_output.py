"""The second bit at the stored output next to f(T) that gains most by it: there it tells more than how y was rounded.

Where y was rounded tells which half of an interval f(x) is in. Away from f(T) the x of both halves are about as many.
Next to f(T) they are not: f - f(T) is about (x - T)², so the half next to f(T) has most of the x, and where f(T) is
itself a stored number or next to one, it has all of them, and the bit tells nothing. So at one output the interval is
cut elsewhere, and what backward takes instead of y there is not a quarter of the spacing away, but two numbers found
for it. At the outputs further on the gain falls with the third power of the distance.
"""

import numpy as np
from numpy.typing import NDArray

from actfit.coefficients.cut_output import CutOutput
from actfit.fitting.activations.tape import Array
from actfit.fitting.invact.branches import Split
from actfit.fitting.invact.exact import derivative_from_output
from actfit.fitting.invact.formats import Format
from actfit.fitting.invact.inputs import Inputs

REACH = 4  # spacings of the format from f(T), in which the output is searched
GRID = 2001  # numbers tried for each half


def moved(f: Array, format_: Format, cut: CutOutput | None) -> Array:
    """f(x) (any shape), as recovered from y and the second bit; see `Format.finer`."""
    finer = format_.finer(f)
    if cut is None:
        return finer
    halves = np.where(np.abs(f) < abs(cut.border), cut.inner, cut.outer)
    return np.where(format_.round(f) == cut.output, halves, finer)


def best_cut(parts: Split, inputs: Inputs, format_: Format) -> CutOutput | None:
    """The cut that lowers the mean square error most, at any one output next to f(T); None if none lowers it.

    Every place between two inputs is tried: for given y, both branches have one border.
    """
    if parts.border is None or parts.branches[0].direction != -parts.branches[1].direction:
        return None
    turn = np.asarray(parts.activation.f(parts.border), dtype=np.float64)
    step = float(format_.spacing(turn))
    near = (np.abs(inputs.f - turn) <= REACH * step) & (inputs.mass > 0)
    y = format_.round(inputs.f)
    spared, best = 0.0, None
    for output in np.unique(y[near]):
        if abs(output) < 2.0**format_.lowest:
            continue  # subnormal numbers, and zero, around which f(x) has both signs
        own = np.flatnonzero((y == output) & (inputs.mass > 0))
        own = own[np.argsort(np.abs(inputs.f[own]), kind="stable")]
        size = np.abs(inputs.f[own])
        square = _squares(inputs, own)
        square[1:-1][size[1:] == size[:-1]] = np.inf  # equal outputs cannot be told apart
        at = int(np.argmin(square))
        gain = square[np.searchsorted(size, abs(output))] - square[at]
        if 0 < at < len(own) and gain > spared:
            border = float(np.float32(np.copysign((size[at - 1] + size[at]) / 2, output)))
            halves = (_representative(parts, inputs, part) for part in (own[:at], own[at:]))
            spared, best = gain, CutOutput(float(output), border, *halves)
    return best


def _squares(inputs: Inputs, own: NDArray[np.intp]) -> Array:
    """The sums of squared errors when the first 0, 1, …, n of the inputs `own` are one half; by branch."""
    mass, value = inputs.mass[own], inputs.derivative[own]
    total = np.zeros(len(own) + 1)
    for branch_bit in (False, True):
        weight = np.where(inputs.right[own] == branch_bit, mass, 0.0)
        if not weight.any():
            continue
        centred = value - np.average(value, weights=weight)
        sums = [np.concatenate([[0.0], np.cumsum(weight * centred**power)]) for power in range(3)]
        for first, second, third in (sums, [column[-1] - column for column in sums]):
            held = first > 0
            total[held] += third[held] - second[held] ** 2 / first[held]
    return total


def _representative(parts: Split, inputs: Inputs, own: NDArray[np.intp]) -> float:
    """The output whose f' on both branches is nearest to the mean of f' of the inputs `own`."""
    f = inputs.f[own]
    grid = np.linspace(f.min(), f.max(), GRID)
    error = np.zeros(GRID)
    for branch_bit, branch in enumerate(parts.branches):
        on_branch = own[inputs.right[own] == bool(branch_bit)]
        if on_branch.size:
            mean = np.average(inputs.derivative[on_branch], weights=inputs.mass[on_branch])
            error += inputs.mass[on_branch].sum() * (derivative_from_output(branch, grid) - mean) ** 2
    return float(np.float32(grid[int(np.argmin(error))]))
