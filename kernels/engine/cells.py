"""Tables of many intervals for compiled code: codes by two lookups, without a search."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from actfit.kernels.engine.elements import computed, table_of
from actfit.kernels.methods.method import KernelSpec, spec_of

MOST_CELLS = 1 << 14  # 96 KiB in float32; packaged tables have 7,347 at most
_EXACT = 1 << 24  # whole numbers below are exact in float32


@dataclass(frozen=True)
class Cells:
    """The intervals of a table, cut at the multiples of 1/scale. No cell has more than one border.

    The scale is a power of two, at least 1, so x * scale is exact in any floating-point type.

    Attributes
    ----------
    scale
        Cells a unit of x.
    first
        The first cell with a border: x is in cell floor(x * scale) - first.
    borders
        Of each cell; infinite without a border.
    codes
        Two of each cell: up to its border, and above it.
    """

    scale: int
    first: int
    borders: Sequence[float]
    codes: Sequence[int]

    def codes_of(self, x: Tensor) -> Tensor:
        """int32: the code of each float32 or float64 number; NaN has the first, as by comparisons."""
        last = self.first + len(self.borders) - 1
        lowest, highest = self.first / self.scale, last / self.scale
        inside = torch.where(x > lowest, x, lowest).clamp(max=highest)
        cell = (torch.floor(inside * self.scale) - self.first).to(torch.int32)
        above = x > entries(x.new_tensor(self.borders), cell)
        return entries(x.new_tensor(self.codes, dtype=torch.uint8), 2 * cell + above).to(torch.int32)


def entries(table: Tensor, places: Tensor) -> Tensor:
    """table[places], for places that are in the table: Inductor sees it by the clamp, and does not check them."""
    return table[places.clamp(0, len(table) - 1)]


def cells_of(spec: KernelSpec, dtype: torch.dtype) -> Cells | None:
    """The cells of a kernel's table for numbers of a dtype; None if two borders are too close."""
    return _cells(spec.key, computed(dtype))


@cache
def _cells(kernel: str, compute_dtype: torch.dtype) -> Cells | None:
    table = table_of(spec_of(kernel))
    borders = table.borders if compute_dtype == torch.float64 else table.float32_borders
    return cut(borders, table.codes)


def cut(borders: Sequence[float], codes: Sequence[int]) -> Cells | None:
    """The widest cells with one border at most, or None if they are more than MOST_CELLS or too far from 0."""
    scale = 1
    while max(scale, scale * max(abs(borders[0]), abs(borders[-1]))) < _EXACT:
        border_of = {math.floor(border * scale): border for border in borders}
        if len(border_of) == len(borders):
            places = list(border_of)
            cells = range(places[0], places[-1] + 1)
            if len(cells) > MOST_CELLS:
                return None
            below = [bisect_left(places, cell) for cell in cells]  # borders below each cell
            pairs = [
                codes[at + above] for cell, at in zip(cells, below, strict=True) for above in (0, cell in border_of)
            ]
            return Cells(scale, places[0], [border_of.get(cell, math.inf) for cell in cells], pairs)
        scale *= 2
    return None
