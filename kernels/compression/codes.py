"""Codes of tensors in few bits, in plain PyTorch that Inductor traces and fuses with neighbouring operations.

A tensor lies in memory as [*lead, groups, group]: neighbours form a group, as in eager mode and on a GPU. A group
stores its minimum and a step, rounded to bfloat16 so that the codes reach the whole group, and each element its number
of steps from the minimum, in `bits` bits. The bits are cut into fields of 4, 2 and 1. A field of w bits of a group is
packed into words: part p of the group, of as many elements as there are words, starts at bit p * w. So neighbours go
into neighbouring words, and each shift is one for a whole vector.
"""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from actfit.kernels.compression import private
from actfit.kernels.engine.codes import LARGEST_HALF
from actfit.kernels.engine.reference_codes import next_bfloat16

WORDS = {4: torch.int32, 2: torch.int32, 1: torch.uint8}  # by the bits of a field; words of 16 bits would be slow
LEAST_PARTS = 8  # of a group, that share the words of a field; a field of 2 bits has twice as many
SMALLEST_STEP = 2.0**-126  # its inverse is finite


class Codes(NamedTuple):
    """Minima and steps of groups, bfloat16 [*lead, groups, 1]; fields [*lead, groups, words]."""

    minimum: Tensor
    step: Tensor
    fields: tuple[Tensor, ...]


def fields_of(bits: int) -> list[tuple[int, int]]:
    """(width, lowest bit) of each field: 7 bits are 4 + 2 + 1, 8 bits are 4 + 4."""
    fields, lowest = [], 0
    while lowest < bits:
        width = next(width for width in WORDS if width <= bits - lowest)
        fields.append((width, lowest))
        lowest += width
    return fields


def encode(x: Tensor, bits: int, noise: Tensor | None = None, written: bool = False, of_roots: bool = False) -> Codes:
    """Codes of floating-point [*lead, groups, group]; `group` is divisible by 16.

    Parameters
    ----------
    x
        Of any floating-point type; computed in float32.
    bits
        1 to 8.
    noise
        Uniform in [0, 1), of the shape of x, for stochastic rounding without bias. None: to the nearest.
    written
        Whether compiled code writes each group's minimum and inverse step to memory first; otherwise Inductor's C++
        computes them again for each word.
    of_roots
        Whether to encode the roots of x, which has no negative numbers. The steps of x are finer where it is small.
    """
    values = x.float().sqrt() if of_roots else x.float()
    low, high = values.amin(-1, keepdim=True), values.amax(-1, keepdim=True)
    minimum = -next_bfloat16(-low)
    step = next_bfloat16(((high - minimum) / ((1 << bits) - 1)).clamp(min=SMALLEST_STEP))
    start, inverse = minimum, 1 / step
    if written:
        start, inverse = private.in_memory(start), private.in_memory(inverse)
    positions = (values - start) * inverse + (0.5 if noise is None else noise)
    numbers = positions.clamp(0, (1 << bits) - 1).to(torch.int32)  # truncation, which is floor above 0
    fields = tuple(_pack(_cut(numbers, lowest, width), width) for width, lowest in fields_of(bits))
    return Codes(minimum.bfloat16(), step.bfloat16(), fields)


def decode(codes: Codes, bits: int, dtype: torch.dtype, of_roots: bool = False) -> Tensor:
    """Values [*lead, groups, group] of codes, computed in float32. of_roots: as in `encode`."""
    return decode_parts(codes, bits, dtype, of_roots).flatten(codes.minimum.dim() - 1)


def decode_parts(codes: Codes, bits: int, dtype: torch.dtype, of_roots: bool = False) -> Tensor:
    """The values of `decode`, in the parts [*lead, groups, 8, 2, group / 16] in which fields hold them.

    In the loops of this shape a shift is one number for a whole vector, so that Inductor's C++ computes with vectors.
    """
    numbers = _numbers(codes.fields, [width for width, _ in fields_of(bits)])
    ones = (1,) * (numbers.dim() + 1 - codes.minimum.dim())
    minimum, step = (ends.float().unflatten(-1, ones) for ends in (codes.minimum, codes.step))
    values = numbers.float() * step + minimum
    values = values * values if of_roots else values
    if dtype == torch.float16:  # the last code may decode to more than the largest float16
        values = values.clamp(-LARGEST_HALF, LARGEST_HALF)
    return values.to(dtype)


def encode_bits(x: Tensor) -> Tensor:
    """uint8 [*lead, groups, group / 8] of bools [*lead, groups, group]."""
    return _pack(x.to(torch.int32), 1)


def decode_bits(field: Tensor) -> Tensor:
    """The bools of `encode_bits`."""
    return decode_bits_parts(field).flatten(-3)


def decode_bits_parts(field: Tensor) -> Tensor:
    """The bools of `decode_bits`, in parts as those of `decode_parts`."""
    return _numbers((field,), [1]) != 0


def _cut(numbers: Tensor, lowest: int, width: int) -> Tensor:
    """The `width` bits of numbers from bit `lowest` on."""
    return ((numbers >> lowest) if lowest else numbers) & ((1 << width) - 1)


def _pack(numbers: Tensor, width: int) -> Tensor:
    """Words of int32 numbers below 2**width."""
    parts = numbers.chunk(_parts(width), -1)
    words = parts[0]
    for place, part in enumerate(parts[1:], 1):
        words = words | (part << (place * width))
    return words.to(WORDS[width])


def _parts(width: int) -> int:
    """How many parts of a group share the words of a field."""
    return int(8 * WORDS[width].itemsize) // width


def _numbers(fields: Sequence[Tensor], widths: Sequence[int]) -> Tensor:
    """The int32 numbers that fields hold, [*lead, groups, 8, 2, group / 16]: fields have 8 parts or 16.

    In one shape, whatever the fields, so that loops over several decoded tensors are alike.
    """
    pieces, lowest = [], 0
    for field, width in zip(fields, widths, strict=True):
        has_halves = _parts(width) > LEAST_PARTS  # otherwise both halves of a part are in words of their own
        shifts = torch.arange(0, width * _parts(width), width, dtype=torch.int32, device=field.device)
        words = field.to(torch.int32).unflatten(-1, (1, 1 if has_halves else 2, -1))
        piece = (words >> shifts.view(LEAST_PARTS, -1, 1)) & ((1 << width) - 1)
        pieces.append(piece << lowest if lowest else piece)
        lowest += width
    return reduce(torch.bitwise_or, pieces)
