"""The floating-point formats that tensors are stored in: rounding to them, and all their values. No torch needed."""

from dataclasses import dataclass

import numpy as np

from actfit.fitting.activations.tape import Array
from actfit.fitting.errors import InputError, nearest


@dataclass(frozen=True)
class Format:
    """A binary floating-point format."""

    name: str  # of the dtype
    precision: int  # significant bits, including the hidden bit
    lowest: int  # 2**lowest is the smallest normal number
    highest: int  # 2**highest is the first power of two beyond the largest number

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return (2.0 - 2.0 ** (1 - self.precision)) * 2.0 ** (self.highest - 1)

    def spacing(self, values: Array) -> Array:
        """The distance to the next number away from zero, at float64 `values` (any shape)."""
        _, exponent = np.frexp(values)
        exponent = np.where(values == 0, self.lowest, np.maximum(exponent - 1, self.lowest))  # frexp gives 0 for 0
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

    def finer(self, values: Array) -> Array:
        """`values` as recovered from a number y of a 16-bit format and one more bit: float64 of the same shape.

        The bit says whether rounding to y went away from zero. So |value| is in the lower or the upper half of the
        interval that rounds to |y|, and the result is the middle of that half: y minus or plus a quarter of its
        spacing. Two kinds of y get another point of the right half: for a power of two, below which numbers are twice
        as dense, it may be the end of the interval; subnormal numbers of the format move by the spacing that they would
        have in float32's normal range, those that are subnormal in float32 not at all.
        """
        values = np.asarray(values, dtype=np.float64)
        stored = self.round(values)
        bits = np.atleast_1d(stored).astype(np.float32).view(np.uint32)
        power = (bits & np.uint32(0xFF800000)).view(np.float32).astype(np.float64).reshape(values.shape)
        share = 2.0 ** -(self.precision + 1)
        with np.errstate(invalid="ignore"):  # what was rounded to infinity
            return np.asarray(stored + np.where(np.abs(values) < np.abs(stored), -share, share) * power)

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
    """The format of this name. Raises `InputError` for a name that is not in `FORMATS`."""
    if name not in FORMATS:
        raise InputError(f"dtype must be one of {', '.join(FORMATS)}, got {name!r}; {nearest(name, FORMATS)}")
    return FORMATS[name]
