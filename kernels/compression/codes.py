"""Codes of tensors in few bits, in plain PyTorch that Inductor traces and fuses with neighbouring operations.

A tensor lies in memory as [*lead, units, group, lanes]: `group` elements that are `lanes` apart form a group. A group
stores its minimum and a step, rounded to bfloat16 so that the codes reach the whole group, and each element its number
of steps from the minimum, in `bits` bits. The bits are cut into fields of 4, 2 and 1. A field of w bits of a unit is
packed into words: part p of the group, of as many elements as there are words, starts at bit p * w.

Neighbours in memory go into neighbouring groups and words, so a minimum, a maximum and each shift are operations on
whole vectors. With groups of neighbours, packed in bytes, a CPU encodes half as fast and decodes a third as fast.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.compression import private
from kernels.engine.codes import LARGEST_HALF
from kernels.engine.reference_codes import next_bfloat16

WORDS = {4: torch.int32, 2: torch.int32, 1: torch.uint8}  # by the bits of a field; words of 16 bits would be slow
SMALLEST_STEP = 2.0**-126  # its inverse is finite


class Codes(NamedTuple):
    """Minima and steps of groups, bfloat16 [*lead, units, 1, lanes]; fields [*lead, units, words, lanes]."""

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


def encode(x: Tensor, bits: int, noise: Tensor | None = None, written: bool = False) -> Codes:
    """Codes of floating-point [*lead, units, group, lanes]; `group` is divisible by 32.

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
    """
    values = x.float()
    low, high = values.amin(-2, keepdim=True), values.amax(-2, keepdim=True)
    minimum = -next_bfloat16(-low)
    step = next_bfloat16(((high - minimum) / ((1 << bits) - 1)).clamp(min=SMALLEST_STEP))
    start, inverse = minimum, 1 / step
    if written:
        start, inverse = private.in_memory(start), private.in_memory(inverse)
    positions = (values - start) * inverse + (0.5 if noise is None else noise)
    numbers = positions.clamp(0, (1 << bits) - 1).to(torch.int32)  # truncation, which is floor above 0
    fields = tuple(_pack(_cut(numbers, lowest, width), width) for width, lowest in fields_of(bits))
    return Codes(minimum.bfloat16(), step.bfloat16(), fields)


def decode(codes: Codes, bits: int, dtype: torch.dtype) -> Tensor:
    """Values [*lead, units, group, lanes] of codes, computed in float32."""
    minimum, step = codes.minimum.float(), codes.step.float()
    parts = _numbers(codes.fields, [width for width, _ in fields_of(bits)])
    values = [part.float() * step + minimum for part in parts]
    if dtype == torch.float16:  # the last code may decode to more than the largest float16
        values = [part.clamp(-LARGEST_HALF, LARGEST_HALF) for part in values]
    return _joined([part.to(dtype) for part in values])


def encode_bits(x: Tensor) -> Tensor:
    """uint8 [*lead, units, group / 8, lanes] of bools [*lead, units, group, lanes]."""
    return _pack(x.to(torch.int32), 1)


def decode_bits(field: Tensor) -> Tensor:
    """The bools of `encode_bits`.

    They stay bytes until they are used: on a CPU, writing bools to memory takes twenty times as long.
    """
    return _joined([part.to(torch.uint8) for part in _numbers((field,), [1])]).to(torch.int32) != 0


def _cut(numbers: Tensor, lowest: int, width: int) -> Tensor:
    """The `width` bits of numbers from bit `lowest` on."""
    return ((numbers >> lowest) if lowest else numbers) & ((1 << width) - 1)


def _pack(numbers: Tensor, width: int) -> Tensor:
    """Words of int32 numbers below 2**width."""
    parts = numbers.chunk(_parts(width), -2)
    words = parts[0]
    for place, part in enumerate(parts[1:], 1):
        words = words | (part << (place * width))
    return words.to(WORDS[width])


def _parts(width: int) -> int:
    """How many parts of a group share the words of a field."""
    return int(8 * WORDS[width].itemsize) // width


def _numbers(fields: Sequence[Tensor], widths: Sequence[int]) -> Iterator[Tensor]:
    """The numbers that fields hold: on a CPU in parts, as many as the field with the most parts has; on a GPU in one.

    Inductor's C++ vectorizes separate parts, but not a single expression whose shift depends on the position; its
    Triton fuses that expression with its users, but not parts.
    """
    if fields[0].device.type != "cpu":
        yield _combined([_unpacked(field, width) for field, width in zip(fields, widths, strict=True)], widths)
        return
    group = fields[0].shape[-2] * _parts(widths[0])
    rows = min(field.shape[-2] for field in fields)
    for first in range(0, group, rows):
        cuts = []
        for field, width in zip(fields, widths, strict=True):
            place, start = divmod(first, field.shape[-2])
            cuts.append(_cut(field.narrow(-2, start, rows).to(torch.int32), place * width, width))
        yield _combined(cuts, widths)


def _unpacked(field: Tensor, width: int) -> Tensor:
    shifts = torch.arange(0, _parts(width) * width, width, dtype=torch.int32, device=field.device)[:, None, None]
    return _cut(field.to(torch.int32)[..., None, :, :] >> shifts, 0, width).flatten(-3, -2)


def _combined(parts: Sequence[Tensor], widths: Sequence[int]) -> Tensor:
    """Numbers from their fields, the lowest bits first."""
    numbers, lowest = parts[0], widths[0]
    for part, width in zip(parts[1:], widths[1:], strict=True):
        numbers, lowest = numbers | (part << lowest), lowest + width
    return numbers


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), -2)
