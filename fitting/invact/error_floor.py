"""The error floor: the least error of f'(x) as a function of the bit and of f(x), rounded to a tensor's format.

Near T many x are stored as one y. The best guess of f'(x) from y still errs by half the range of f' over these x (in
the largest error) and by the spread of f' about its mean (in the mean square). A second bit, which way y was rounded,
cuts these x in two.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from actfit.coefficients.cut_output import CutOutput
from actfit.fitting.activations import Activation
from actfit.fitting.activations.tape import Array
from actfit.fitting.errors import InputError
from actfit.fitting.invact.branches import Arc, Branch, Split, split
from actfit.fitting.invact.cut_output import best_cut, moved
from actfit.fitting.invact.exact import derivative_from_output
from actfit.fitting.invact.formats import Format, get_format
from actfit.fitting.invact.inputs import every_input, masses
from actfit.fitting.weights import Weight

NEAREST = 1e-9  # distance from T, in x, at which the analysis for float32 begins
POINTS = 20_000  # on each branch, for float32


@dataclass(frozen=True)
class Cells:
    """The stored outputs of one branch, or a fine sample of them. All attributes are float64 arrays of shape (n,)."""

    y: Array  # the outputs, increasing; with a second bit, as `cut_output.moved` recovers them
    # low, high: bounds of f'(x) over the x that are stored as y
    low: Array
    high: Array
    # mean, spread: mean and variance of f'(x) over these x
    mean: Array
    spread: Array
    mass: Array  # how often y occurs; the branches of an `ErrorFloor` sum to 1 together

    @property
    def middle(self) -> Array:
        """The guess of f' whose largest error is least."""
        return (self.low + self.high) / 2

    @property
    def half(self) -> Array:
        """The largest error of the `middle`."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class ErrorFloor:
    """The least errors of any function of the stored y and bit: exact for 16-bit formats, by analysis for float32."""

    split: Split  # the branches of f
    format: Format  # of the stored outputs
    cells: tuple[Cells, ...]  # the stored outputs of each branch
    # rms, linf: no function of y and bit has a root mean square error below `rms`, nor a largest error below `linf`
    rms: float
    linf: float
    linf_at: float  # the y where the largest error is attained
    # rounding_rms, rounding_linf: the errors of f'(x) itself, rounded to the format
    rounding_rms: float
    rounding_linf: float
    bits: int = 1  # 1: y and the branch are stored. 2: and which way y was rounded.
    cut: CutOutput | None = None  # the output where the second bit tells something else

    def outputs(self, x: Array) -> Array:
        """The stored outputs at x (any shape), as in `Cells.y`."""
        return _stored(self.split.activation.f(x), self.format, self.bits, self.cut)


def information_floor(
    activation: Activation, dtype: str, weight: Weight, bits: int = 1, cut: CutOutput | None = None
) -> ErrorFloor:
    """The least errors that outputs stored as `dtype` allow.

    activation: the function f.
    dtype: of x and of the stored outputs: "bfloat16", "float16" or "float32".
    weight: the distribution of x; it need not be normalised.
    bits: stored beside y: 1, the branch, or 2, and which way y was rounded.
    cut: with two bits: an output where the second one tells something else, see `second_bit`.
    Raises `InputError` if the dtype is unknown or cannot hold the outputs, one bit does not tell the branches of f
    apart, the weight falls on no number of the dtype, or a second bit is of no use.
    """
    parts, format_ = split(activation), get_format(dtype)
    _check_bits(bits, parts, format_)
    listed = format_.precision <= 16
    cells = _counted(parts, format_, weight, bits, cut) if listed else _analysed(parts, format_, weight)
    counts = [len(np.unique(of_branch.y[np.isfinite(of_branch.y)])) for of_branch in cells]
    if min(counts) == 0 or sum(counts) == 1:
        raise InputError(f"{activation.name} must have finite outputs in {dtype}, and not one only: scale it down")
    total = sum(float(of_branch.mass.sum()) for of_branch in cells)
    if not 0 < total < math.inf:
        raise InputError(f"weight must fall on numbers of {dtype} whose output is finite, got {weight.label}")
    rms = math.sqrt(sum(float(of_branch.mass @ of_branch.spread) for of_branch in cells) / total)
    cells = tuple(replace(of_branch, mass=of_branch.mass / total) for of_branch in cells)
    worst = max(cells, key=lambda of_branch: float(of_branch.half.max(initial=0.0)))
    at = int(np.argmax(worst.half))
    linf, linf_at = float(worst.half[at]), float(worst.y[at])
    rounding = [np.abs(format_.round(of_branch.mean) - of_branch.mean) for of_branch in cells]
    squares = (float(of_branch.mass @ error**2) for of_branch, error in zip(cells, rounding, strict=True))
    rounding_linf = max(float(error.max(initial=0.0)) for error in rounding)
    return ErrorFloor(parts, format_, cells, rms, linf, linf_at, math.sqrt(sum(squares)), rounding_linf, bits, cut)


def second_bit(activation: Activation, dtype: str, weight: Weight) -> CutOutput | None:
    """The output at which a second bit is to tell something else than how y was rounded; None if there is none.

    Raises `InputError` as `information_floor` does for two bits.
    """
    parts, format_ = split(activation), get_format(dtype)
    _check_bits(2, parts, format_)
    return best_cut(parts, every_input(parts, format_, weight), format_)


def _check_bits(bits: int, parts: Split, format_: Format) -> None:
    name = parts.activation.name
    if bits not in (1, 2):
        raise InputError(f"bits must be 1 or 2, got {bits!r}")
    if bits == 2 and not parts.takes_second_bit:
        raise InputError(
            f"bits must be 1 for {name}, got 2: the second bit is for functions that fall and rise, and whose f' varies"
            " on a branch"
        )
    if bits == 2 and format_.precision > 16:
        raise InputError(
            f"bits must be 1 in {format_.name}, got 2: f is computed in {format_.name}, so nothing is known of how y"
            " was rounded; the second bit is for bfloat16 and float16"
        )


def _stored(outputs: Array, format_: Format, bits: int, cut: CutOutput | None) -> Array:
    return moved(outputs, format_, cut) if bits == 2 else format_.round(outputs)


def _counted(parts: Split, format_: Format, weight: Weight, bits: int, cut: CutOutput | None) -> tuple[Cells, ...]:
    """From every input of a 16-bit format."""
    inputs = every_input(parts, format_, weight)
    y = _stored(inputs.f, format_, bits, cut)
    cells = []
    for branch_bit in range(len(parts.branches)):
        on_branch = inputs.right == bool(branch_bit)
        cells.append(_grouped(y[on_branch], inputs.derivative[on_branch], inputs.mass[on_branch]))
    return tuple(cells)


def _grouped(y: Array, derivative: Array, mass: Array) -> Cells:
    outputs, group = np.unique(y, return_inverse=True)
    low, high = np.full(outputs.shape, math.inf), np.full(outputs.shape, -math.inf)
    np.minimum.at(low, group, derivative)
    np.maximum.at(high, group, derivative)
    total = np.asarray(np.bincount(group, mass, len(outputs)), dtype=np.float64)
    known = total > 0
    mean = (low + high) / 2
    mean[known] = np.bincount(group, mass * derivative, len(outputs))[known] / total[known]
    spread = np.asarray(np.bincount(group, mass * (derivative - mean[group]) ** 2, len(outputs)), dtype=np.float64)
    spread[known] /= total[known]
    return Cells(outputs, low, high, mean, np.where(known, spread, 0.0), total)


def _analysed(parts: Split, format_: Format, weight: Weight) -> tuple[Cells, ...]:
    """From a fine sample of x: all outputs that round to f(x) make one cell."""
    return tuple(
        _joined([_analysed_arc(parts, arc, format_, weight) for arc in branch.arcs]) for branch in parts.branches
    )


def _analysed_arc(parts: Split, arc: Arc, format_: Format, weight: Weight) -> Cells:
    x = np.concatenate([_spread_out(arc.lo, arc.hi), np.linspace(*weight.domain, POINTS // 4), weight.landmarks])
    x = np.unique(format_.round(x))
    x = x[(arc.lo < x) & (x < arc.hi)]
    if weight.samples is not None:  # those on the arc; the others would all count at its ends
        on_arc = (arc.lo <= weight.samples) & (weight.samples < arc.hi)
        weight = replace(weight, samples=weight.samples[on_arc])
    y = format_.round(parts.activation.f(x))
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    if len(x) < 2:
        return Cells(*np.empty((6, 0)))
    half, alone = format_.spacing(y) / 2, Branch(arc.lo, arc.hi, arc.direction, (arc,))
    ends = [derivative_from_output(alone, y + shift * half) for shift in (-1.0, 1.0)]
    low, high = np.minimum(*ends), np.maximum(*ends)
    # f' spread evenly over the cell
    return Cells(y, low, high, (low + high) / 2, (high - low) ** 2 / 12, masses(x, weight, format_))


def _joined(parts: list[Cells]) -> Cells:
    columns = {key: np.concatenate([vars(part)[key] for part in parts]) for key in vars(parts[0])}
    order = np.argsort(columns["y"], kind="stable")
    return Cells(**{key: column[order] for key, column in columns.items()})


def _spread_out(lo: float, hi: float) -> Array:
    """Points of (lo, hi), dense towards finite ends and towards 0."""
    away = np.geomspace(NEAREST, 40.0, POINTS // 4)
    points = [np.linspace(max(lo, -40.0), min(hi, 40.0), POINTS // 4), away, -away]
    points += [lo + away] if math.isfinite(lo) else []
    points += [hi - away] if math.isfinite(hi) else []
    x = np.unique(np.concatenate(points))
    return x[(lo < x) & (x < hi)]
