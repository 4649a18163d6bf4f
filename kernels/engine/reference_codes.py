"""The ops of K-bit codes in plain PyTorch: what CPU tensors run, and the reference of the Triton kernels.

Neighbours of a flat tensor form groups of `group_size`; the last may be shorter. Vectors have an entry for each group,
and any floating-point type. The ops compute in float32, or in float64 for float64.
"""

from types import ModuleType

import torch
from torch import Tensor
from torch.nn.functional import pad

from actfit.kernels.engine.codes import LEAST_STEP, narrowed, part_of, room_for
from actfit.kernels.engine.elements import computed
from actfit.kernels.engine.host import loops, pack, unpack
from actfit.kernels.engine.pieces import groups_of, pieces


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


def encode(x: Tensor, minimum: Tensor, inverse: Tensor, noise: Tensor | None, group_size: int, bits: int) -> Tensor:
    """Codes (x - minimum) * inverse + noise of a flat tensor, rounded down, from 0 to 2**bits - 1; 0 for NaN.

    noise: numbers from [0, 1), one for each element; None: a half, which rounds to the nearest code.
    """
    wide, made = computed(x.dtype), room_for(x, bits)
    for piece in pieces(len(x), group_size):
        own = groups_of(piece, group_size)
        rows = _in_groups(x[piece], group_size, wide).sub_(minimum[own, None]).mul_(inverse[own, None])
        places = rows.view(-1)[: piece.stop - piece.start].add_(0.5 if noise is None else noise[piece].to(wide))
        codes = places.nan_to_num_(0.0).clamp_(0, (1 << bits) - 1).to(torch.int32).to(torch.uint8)  # at once is slow
        part_of(made, piece).copy_(codes if bits == 8 else pack(codes, bits))
    return made


def encode_groups(x: Tensor, noise: Tensor | None, group_size: int, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, minima and scales of x by groups. noise: one number for each of x; None: rounding to nearest."""
    flat, wide = x.reshape(-1), computed(x.dtype)
    neighbours = _loops_for(flat)
    if noise is not None:
        noise = noise.to(wide).reshape(-1).contiguous()
    if neighbours is None:
        minimum, scale = ends(flat, group_size, bits)
        return encode(flat, minimum, 1 / scale.to(wide), noise, group_size, bits), minimum, scale
    made: tuple[Tensor, Tensor, Tensor] = neighbours.encode_groups(flat.contiguous(), noise, group_size, bits)
    return made


def decode_groups(
    codes: Tensor, minimum: Tensor, scale: Tensor, group_size: int, count: int, dtype: torch.dtype
) -> Tensor:
    """Flat values code * scale + minimum, `count` of them."""
    wide = computed(dtype)
    made = codes.new_empty(count, dtype=dtype)
    neighbours = _loops_for(made)
    if neighbours is not None and minimum.dtype == scale.dtype == torch.bfloat16:
        neighbours.decode(codes.contiguous(), scale.contiguous(), minimum.contiguous(), made, group_size)
        return made
    minimum, scale = minimum.to(wide), scale.to(wide)
    for piece in pieces(count, group_size):
        of_piece, own = part_of(codes, piece), groups_of(piece, group_size)
        numbers = of_piece if of_piece.dim() == 1 else unpack(of_piece, piece.stop - piece.start)
        rows = _in_groups(numbers, group_size, wide).mul_(scale[own, None]).add_(minimum[own, None])
        made[piece] = rows.view(-1)[: piece.stop - piece.start]
    return narrowed(made, dtype)


def _in_groups(flat: Tensor, group_size: int, dtype: torch.dtype) -> Tensor:
    """A copy as [groups, group_size]; what fills the last one is 0."""
    return pad(flat.to(dtype), (0, -len(flat) % group_size)).view(-1, group_size)


def _loops_for(flat: Tensor) -> ModuleType | None:
    """`actfit.kernels.engine.neighbours`; None without Numba, elsewhere, or of a dtype that it does not know."""
    found = loops() if flat.is_cpu and flat.numel() else None
    return found if found is not None and flat.dtype in found.DTYPES and not flat.is_neg() else None
