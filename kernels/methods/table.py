"""Few-bit tables as kernels compare with them."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from coefficients import CoefficientError, load
from coefficients.reference import check_function, check_numbers
from kernels.errors import KernelError


def largest_float32(border: float) -> float:
    """The largest float32 that is not above the border: x > border, for a float32 x, just where x > this number."""
    try:
        (rounded,) = struct.unpack("f", struct.pack("f", border))
    except OverflowError:  # beyond the largest number
        rounded = math.copysign(math.inf, border)
    return rounded if rounded <= border else _float32_below(rounded)


def _float32_below(value: float) -> float:
    """The next float32 towards minus infinity."""
    if value == 0:
        return -(2.0**-149)
    (bits,) = struct.unpack("i", struct.pack("f", value))
    (below,) = struct.unpack("f", struct.pack("i", bits - 1 if value > 0 else bits + 1))
    return float(below)


@dataclass(frozen=True)
class Table:
    """q(x) = levels[codes[i]] for borders[i-1] < x <= borders[i]."""

    borders: Sequence[float]
    codes: Sequence[int]
    levels: Sequence[float]

    @property
    def bits(self) -> int:
        """Bits that the codes need: fewer than were asked for, where f' has fewer values."""
        return (len(self.levels) - 1).bit_length()

    @property
    def steps(self) -> int:
        """Steps of a binary search for the interval."""
        return len(self.borders).bit_length()

    @cached_property
    def float32_borders(self) -> tuple[float, ...]:
        """The borders as float32 numbers are compared with them, see `largest_float32`."""
        return tuple(map(largest_float32, self.borders))

    def flat(self) -> list[float]:
        """2**steps float32 borders, the last infinite, 2**steps codes, then the levels."""
        size = 1 << self.steps
        borders = [*self.float32_borders, *[math.inf] * (size - len(self.borders))]
        return [*borders, *self.codes, *[0] * (size - len(self.codes)), *self.levels]


@cache
def read_table(function: str, bits: int, file: str) -> Table:
    """The table of a file, given as path#digest, or the packaged one of so many bits.

    Raises
    ------
    KernelError
        Where the file is another one than when its digest was taken.
    CoefficientError
        Where it cannot be a table of the function.
    """
    path, _, digest = file.rpartition("#")
    document = load(path) if path else load(function, f"fewbit-{bits}bit")
    if not document["sha256"].startswith(digest):
        raise KernelError(f"coefficients must stay as they were when the layer was made, got another {path}")
    try:
        check_function(document)
        check_numbers(document)
    except CoefficientError as error:
        raise CoefficientError(f"{path or f'{function} fewbit-{bits}bit'}: {error}") from None
    solution = document["solution"]
    return Table(tuple(solution["borders"]), tuple(solution["codes"]), tuple(solution["levels"]))
