"""Bit planes in plain PyTorch: plane p of `codes` holds bit p of each, eight elements a byte, the first one lowest."""

import torch
from torch import Tensor

# Eight bytes of 0 or 1, as one number with the first lowest, times this have them as the bits of the highest byte.
_GATHER = 0x0102040810204080
_SPREAD, _OWN_BIT = 0x0101010101010101, -0x7FBFDFEFF7FBFDFF  # 0x8040201008040201: bit k of byte k


def plane_bytes(count: int) -> int:
    """Bytes of one plane of so many elements."""
    return (count + 7) // 8


def pack(codes: Tensor, bits: int) -> Tensor:
    """uint8 [bits, ceil(n/8)] of flat uint8 codes below 2**bits; what fills the last byte is 0."""
    padded = torch.nn.functional.pad(codes, (0, -codes.numel() % 8))
    planes = padded.new_empty((bits, padded.numel() // 8))
    for plane in range(bits):
        bit = (padded >> plane) & 1
        planes[plane] = ((bit.view(torch.int64) * _GATHER) >> 56) & 0xFF
    return planes


def unpack(planes: Tensor, count: int) -> Tensor:
    """The first `count` codes, flat uint8."""
    codes = planes.new_zeros(planes.shape[1] * 8)
    for plane, row in enumerate(planes):
        spread = (row.to(torch.int64) * _SPREAD) & _OWN_BIT
        codes |= spread.view(torch.uint8).ne(0).view(torch.uint8) << plane
    return codes[:count]
