"""The ops of K-bit codes in plain PyTorch: what CPU tensors run, and the reference of the Triton kernels.

Neighbours of a flat tensor form groups of `group_size`; element i takes entry (i // group_size) % length of a vector.
Vectors have an entry for each group, or one for each channel, which recurs; or one entry, and any floating-point type.
The ops compute in float32, or in float64 for float64.
"""

from types import ModuleType

import torch
from torch import Tensor

from actfit.kernels.engine.codes import LEAST_STEP, bits_of, in_two_steps, part_of, room_for
from actfit.kernels.engine.elements import computed
from actfit.kernels.engine.host import loops, on_host, pack, unpack
from actfit.kernels.engine.pieces import GroupEntries, pieces
from actfit.kernels.engine.planes import eights_of

LARGEST = 1 << 16  # elements of a group for loops, which hold the codes of up to eight at once


def ends(x: Tensor, group_size: int, bits: int) -> tuple[Tensor, Tensor]:
    """The minimum of each group, rounded down to bfloat16, and its scale, rounded up: bfloat16 each.

    So 2^bits codes, from the minimum on and a scale apart, cover the whole group.
    """
    flat = x.reshape(-1)
    whole = len(flat) // group_size
    last = [flat[None, whole * group_size :]] if len(flat) % group_size else []
    parts = [flat[: whole * group_size].view(whole, group_size), *last]
    # Not aminmax, which takes several times as long.
    low, high = (torch.cat([end(part, -1) for part in parts]).float() for end in (torch.amin, torch.amax))
    minimum, scale = range_of(low, high, bits)
    return minimum.bfloat16(), scale.bfloat16()


def range_of(low: Tensor, high: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Minima and scales of groups from their ends: numbers of bfloat16, in float32."""
    minimum = 0 - _next_bfloat16(-low)  # 0, not -0, of zeros with any signs
    return minimum, _next_bfloat16((high - minimum) / ((1 << bits) - 1)).clamp(min=LEAST_STEP)


def _next_bfloat16(values: Tensor) -> Tensor:
    """The values rounded up to bfloat16, which has the upper half of a float32's bits."""
    bits = (values > 0).to(torch.int32) * 0xFFFF + values.view(torch.int32)
    return (bits & ~0xFFFF).view(torch.float32)


def encode(
    x: Tensor, center: Tensor, inverse_scale: Tensor, offset: Tensor, noise: Tensor | None, group_size: int, bits: int
) -> Tensor:
    """Codes floor((x - center) * inverse_scale + noise) + offset, clamped to [0, 2**bits - 1]; 0 for NaN.

    noise: numbers from [0, 1), one for each element of x, or one for all; or None.
    """
    flat = x.reshape(-1)
    compute_dtype = computed(flat.dtype)
    entries = GroupEntries(group_size, *(vector.to(compute_dtype) for vector in (center, inverse_scale, offset)))
    made = room_for(flat, bits)
    for piece in pieces(len(flat), entries.units):
        places = flat[piece].to(compute_dtype, copy=True)
        parts = list(entries.parts(places, piece.start))
        for part, start, factor, _ in parts:
            part.sub_(start).mul_(factor)
        if noise is not None:
            places += noise if noise.numel() == 1 else noise.reshape(-1)[piece]
        places.floor_()
        for part, *_, first in parts:
            part.add_(first)
        codes = places.nan_to_num_(0.0).clamp_(0, (1 << bits) - 1).to(torch.int32).to(torch.uint8)  # at once is slow
        part_of(made, piece).copy_(codes if bits == 8 else pack(codes, bits))
    return made


def encode_groups(x: Tensor, noise: Tensor | None, group_size: int, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, minima and scales of x by groups. noise: one number for each of x; None: rounding to nearest."""
    flat = x.reshape(-1)
    neighbours = _loops_for(flat, group_size, len(flat))
    if neighbours is None or flat.dtype not in neighbours.WORDS:
        return in_two_steps(ends, encode, flat, noise, group_size, bits)
    own = None if noise is None else noise.float().reshape(-1).contiguous()
    made: tuple[Tensor, Tensor, Tensor] = neighbours.encode_groups(flat.contiguous(), own, group_size, bits)
    return made


def decode(codes: Tensor, scale: Tensor, minimum: Tensor, group_size: int, count: int, dtype: torch.dtype) -> Tensor:
    """Flat values code * scale + minimum, `count` of them; planes of codes may be any distance apart."""
    compute_dtype = computed(dtype)
    made = codes.new_empty(count, dtype=dtype)
    neighbours = _loops_for(codes, group_size, count)
    if neighbours is not None and dtype in neighbours.WORDS and _are_of_groups(scale, minimum, group_size, count):
        neighbours.decode(codes.contiguous(), scale, minimum, made, group_size)
        return made
    groups = GroupEntries(group_size, *(vector.to(compute_dtype) for vector in (scale, minimum)))
    eights = eights_of(bits_of(codes), made.device)
    for piece in pieces(count, groups.units):
        own = part_of(codes, piece)
        values = (own if own.dim() == 1 else unpack(own, piece.stop - piece.start, eights)).to(compute_dtype)
        for part, factor, least in groups.parts(values, piece.start):
            part.mul_(factor).add_(least)
        made[piece] = values
    return made


def _loops_for(x: Tensor, group_size: int, count: int) -> ModuleType | None:
    """`actfit.kernels.engine.neighbours`; None without Numba, or elsewhere."""
    return loops() if count and group_size <= LARGEST and on_host(x) else None


def _are_of_groups(scale: Tensor, minimum: Tensor, group_size: int, count: int) -> bool:
    """Whether these are what `encode_groups` gives: else loops do not know them."""
    return all(x.dtype == torch.bfloat16 and len(x) == -(-count // group_size) for x in (scale, minimum))
