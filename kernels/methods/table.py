"""Few-bit tables, with borders as kernels compare with them."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from actfit.coefficients import CoefficientError, load
from actfit.coefficients.reference import check_function, check_numbers
from actfit.kernels.errors import KernelError
from actfit.kernels.methods.function_info import FunctionInfo


def largest_float32(border: float) -> float:
    """The largest float32 that is not above the border: x > border, for a float32 x, just where x > this number."""
    import numpy as np  # not above: commands read their options first

    with np.errstate(over="ignore"):
        rounded = np.float32(border)
    return float(rounded if float(rounded) <= border else np.nextafter(rounded, np.float32(-np.inf)))


@dataclass(frozen=True)
class Table:
    """q(x) = levels[codes[i]] for borders[i-1] < x <= borders[i]."""

    borders: Sequence[float]
    codes: Sequence[int]
    levels: Sequence[float]

    @property
    def bits(self) -> int:
        """Bits of a code: fewer than were asked for, if f' has fewer values."""
        return (len(self.levels) - 1).bit_length()

    @property
    def steps(self) -> int:
        """Steps of a binary search for the interval."""
        return len(self.borders).bit_length()

    @cached_property
    def float32_borders(self) -> tuple[float, ...]:
        """The borders for comparisons with float32 numbers, see `largest_float32`."""
        return tuple(map(largest_float32, self.borders))

    def flat(self) -> list[float]:
        """2**steps float32 borders, the last infinite, 2**steps codes, then the levels."""
        size = 1 << self.steps
        borders = [*self.float32_borders, *[math.inf] * (size - len(self.borders))]
        return [*borders, *self.codes, *[0] * (size - len(self.codes)), *self.levels]


_OTHERS = " actfit.elementwise(f, coefficients=file) takes those of any function"


def own_document(path: str, method: str, function: FunctionInfo, parameters: Mapping[str, float]) -> Mapping[str, Any]:
    """A user's file; raises KernelError if it cannot be read, or is of another method, function or parameters."""
    try:
        document = load(path)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise KernelError(f"coefficients must be a file that can be read, got {path!r}: {reason}") from None
    except CoefficientError as error:
        raise KernelError(f"coefficients must be a file that `actfit check` accepts: {error}") from None
    got = f"{document['method']} of {document['function']['name']}"
    if document["method"] != method or document["function"]["name"] != function.name:
        raise KernelError(f"coefficients must be a {method} file of {function.name}, got {got} ({path});{_OTHERS}")
    if document["function"]["params"] != parameters:
        raise KernelError(f"coefficients must be for {dict(parameters)}, got {document['function']['params']} ({path})")
    return document


@cache
def read_table(function: str, name: str, file: str, values: str) -> Table:
    """The table of a file, given as path#digest, or the packaged one of this name, as "fewbit-3bit".

    values: what codes stand for there, "levels", or "derivatives" or "outputs" of a joint code.
    Raises KernelError if the file has changed since its digest was taken; CoefficientError if the table is not one of
    the function.
    """
    path, _, digest = file.rpartition("#")
    document = load(path) if path else load(function, name)
    if not document["sha256"].startswith(digest):
        raise KernelError(f"coefficients must stay as they were when the layer was made, got another {path}")
    try:
        check_function(document)
        check_numbers(document)
    except CoefficientError as error:
        raise CoefficientError(f"{path or f'{function} {name}'}: {error}") from None
    solution = document["solution"]
    levels = tuple(solution[values])
    return Table(tuple(solution["borders"]), tuple(solution.get("codes", range(len(levels)))), levels)
