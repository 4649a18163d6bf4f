"""The information floor: how well f'(x) can be known at all from f(x), rounded to a tensor's format, and the bit.

Near T many x share one y. Nobody who sees y alone can say which it was; the best guess of f'(x) still errs by half
the range of f' over these x (in the largest error) and by its spread about its mean (in the mean square).
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fitting.activations import Activation
from fitting.activations.tape import Array
from fitting.errors import InputError, nearest
from fitting.invact.branches import Arc, Side, Split, split
from fitting.invact.exact import slope_of_output
from fitting.weights import Weight


@dataclass(frozen=True)
class Format:
    """A binary format with `precision` significant bits (the hidden one too) and normal exponents from `lowest` up."""

    name: str
    precision: int
    lowest: int  # of 2**e, the smallest normal number
    highest: int  # 2**highest is the first power beyond the largest number

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return (2.0 - 2.0 ** (1 - self.precision)) * 2.0 ** (self.highest - 1)

    def spacing(self, values: Array) -> Array:
        """The distance to the next number away from zero, at float64 `values` (any shape)."""
        _, exponent = np.frexp(values)
        exponent = np.where(values == 0, self.lowest, np.maximum(exponent - 1, self.lowest))  # frexp says 0 of 0
        return np.asarray(np.ldexp(1.0, exponent - (self.precision - 1)))

    def round(self, values: Array) -> Array:
        """The nearest numbers of the format, ties to even, as float64; beyond the largest ±inf. NaN stays."""
        values = np.asarray(values, dtype=np.float64)
        finite = np.where(np.isfinite(values), values, 0.0)
        step = self.spacing(finite)
        with np.errstate(over="ignore"):
            rounded = np.rint(finite / step) * step  # both operations are exact: step is a power of two
        rounded = np.where(np.abs(rounded) > self.largest, np.copysign(np.inf, rounded), rounded)
        return np.where(np.isfinite(values), np.copysign(rounded, values), values)

    def numbers(self) -> Array:
        """Every finite number of a 16-bit format, in increasing order; the two zeros count once."""
        if self.precision > 16:
            raise ValueError(f"{self.name} has too many numbers to list")
        mantissas = np.arange(2 ** (self.precision - 1)) / 2.0 ** (self.precision - 1)
        exponents = np.arange(self.lowest, self.highest)
        normal = np.ldexp(1.0 + mantissas, exponents[:, None]).ravel()
        positive = np.concatenate([np.ldexp(mantissas[1:], self.lowest), normal])
        return np.concatenate([-positive[::-1], [0.0], positive])


FORMATS = {
    "bfloat16": Format("bfloat16", 8, -126, 128),
    "float16": Format("float16", 11, -14, 16),
    "float32": Format("float32", 24, -126, 128),
}


def get_format(name: str) -> Format:
    """One of `FORMATS`. Raises `InputError` for another name."""
    if name not in FORMATS:
        raise InputError(f"dtype must be one of {', '.join(FORMATS)}, got {name!r}; {nearest(name, FORMATS)}")
    return FORMATS[name]


NEAREST = 1e-9  # of T, in x: where the analysis for float32 begins
POINTS = 20_000  # a side, for float32


@dataclass(frozen=True)
class Cells:
    """Every stored output of one side, or a fine sample of them: arrays of one length, by increasing y.

    `low` and `high` bound f'(x) over the x that are stored as y, `mean` is its mean, `spread` its variance;
    `mass` is how often y occurs (both sides together sum to 1).
    """

    y: Array
    low: Array
    high: Array
    mean: Array
    spread: Array
    mass: Array

    @property
    def middle(self) -> Array:
        """The guess whose largest error is least."""
        return (self.low + self.high) / 2

    @property
    def half(self) -> Array:
        """That largest error."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Floor:
    """No function of the stored y and bit has a root mean square error below `rms`, nor a largest below `linf`.

    `linf_at` is the y where that is. Exact for the 16-bit formats, by analysis for float32. `rounding_rms` and
    `rounding_linf` are what rounding f'(x) itself to the format costs.
    """

    split: Split
    format: Format
    cells: tuple[Cells, ...]
    rms: float
    linf: float
    linf_at: float
    rounding_rms: float
    rounding_linf: float


def information_floor(activation: Activation, dtype: str, weight: Weight) -> Floor:
    """The floor for outputs stored as `dtype`, x distributed by `weight` (normalised here) and of that dtype too.

    Raises `InputError` for an unknown dtype, and for an activation that one bit does not split or it cannot hold.
    """
    parts, form = split(activation), get_format(dtype)
    outputs = _counted if form.precision <= 16 else _analysed
    cells = outputs(parts, form, weight)
    counts = [len(np.unique(one.y[np.isfinite(one.y)])) for one in cells]
    if min(counts) == 0 or sum(counts) == 1:
        raise InputError(f"{activation.name} must have finite outputs in {dtype}, and not one only: scale it down")
    total = sum(float(one.mass.sum()) for one in cells)
    if not 0 < total < math.inf:
        raise InputError(f"weight must fall on numbers of {dtype} whose output is finite, got {weight.label}")
    rms = math.sqrt(sum(float(one.mass @ one.spread) for one in cells) / total)
    cells = tuple(Cells(**{**vars(one), "mass": one.mass / total}) for one in cells)
    worst = max(cells, key=lambda one: float(one.half.max(initial=0.0)))
    at = int(np.argmax(worst.half))
    missed = [np.abs(form.round(one.mean) - one.mean) for one in cells]
    rounding_rms = math.sqrt(sum(float(one.mass @ miss**2) for one, miss in zip(cells, missed, strict=True)))
    rounding_linf = max(float(miss.max(initial=0.0)) for miss in missed)
    return Floor(parts, form, cells, rms, float(worst.half[at]), float(worst.y[at]), rounding_rms, rounding_linf)


def on_right(parts: Split, x: Array) -> NDArray[np.bool_]:
    """The bit at inputs x; all False where one side is all there is."""
    if parts.border is None:
        return np.zeros(x.shape, dtype=np.bool_)
    return x > parts.border if parts.border_is_left else x >= parts.border


def _counted(parts: Split, form: Format, weight: Weight) -> tuple[Cells, ...]:
    """Over every input of a 16-bit format."""
    x = form.numbers()
    mass = _masses(x, weight, form)
    y, slope = form.round(parts.activation.f(x)), parts.activation.df(x)
    known = np.isfinite(y) & np.isfinite(slope)
    right = on_right(parts, x)
    return tuple(
        _grouped(y[chosen], slope[chosen], mass[chosen])
        for side in range(len(parts.sides))
        for chosen in [known & (right == bool(side))]
    )


def _masses(x: Array, weight: Weight, form: Format) -> Array:
    """How often each number occurs when a draw from `weight` is rounded to it."""
    if weight.samples is not None:
        counts = np.zeros_like(x)
        np.add.at(counts, np.searchsorted(x, form.round(np.clip(weight.samples, x[0], x[-1]))), 1.0)
        return counts
    width = np.gradient(x)
    lo, hi = weight.domain
    inside = (lo <= x) & (x <= hi)
    density = weight.density(np.where(inside, x, (lo + hi) / 2)) if weight.density is not None else np.ones_like(x)
    return np.where(inside & np.isfinite(density), density * width, 0.0)


def _grouped(y: Array, slope: Array, mass: Array) -> Cells:
    outputs, group = np.unique(y, return_inverse=True)
    low, high = np.full(outputs.shape, math.inf), np.full(outputs.shape, -math.inf)
    np.minimum.at(low, group, slope)
    np.maximum.at(high, group, slope)
    total = np.asarray(np.bincount(group, mass, len(outputs)), dtype=np.float64)
    known = total > 0
    mean = (low + high) / 2
    mean[known] = np.bincount(group, mass * slope, len(outputs))[known] / total[known]
    spread = np.asarray(np.bincount(group, mass * (slope - mean[group]) ** 2, len(outputs)), dtype=np.float64)
    spread[known] /= total[known]
    return Cells(outputs, low, high, mean, np.where(known, spread, 0.0), total)


def _analysed(parts: Split, form: Format, weight: Weight) -> tuple[Cells, ...]:
    """Over a fine sample of x, each with the whole interval of outputs that are stored as its own."""
    return tuple(_joined([_analysed_arc(parts, arc, form, weight) for arc in side.arcs]) for side in parts.sides)


def _analysed_arc(parts: Split, arc: Arc, form: Format, weight: Weight) -> Cells:
    x = np.concatenate([_spread_out(arc.lo, arc.hi), np.linspace(*weight.domain, POINTS // 4), weight.landmarks])
    x = np.unique(form.round(x))
    x = x[(arc.lo < x) & (x < arc.hi)]
    if weight.samples is not None:  # the arc's own; the others would all count at its ends
        own = (arc.lo <= weight.samples) & (weight.samples < arc.hi)
        weight = replace(weight, samples=weight.samples[own])
    y = form.round(parts.activation.f(x))
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    if len(x) < 2:
        return Cells(*np.empty((6, 0)))
    half, alone = form.spacing(y) / 2, Side(arc.lo, arc.hi, arc.direction, (arc,))
    ends = [slope_of_output(alone, y + shift * half) for shift in (-1.0, 1.0)]
    low, high = np.minimum(*ends), np.maximum(*ends)
    # f' spread evenly over the cell
    return Cells(y, low, high, (low + high) / 2, (high - low) ** 2 / 12, _masses(x, weight, form))


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
