"""Bit planes in plain PyTorch: plane p has bit p of each code, eight codes a byte, the first in the lowest bit."""

import torch
from torch import Tensor

# Eight codes are one number of 64 bits, the first lowest.
_ONES, _OWN_BIT = 0x0101010101010101, -0x7FBFDFEFF7FBFDFF  # 0x8040201008040201: bit k of byte k
_GATHER = 0x0102040810204080  # times this, bytes of 0 or 1 are the bits of the highest byte
_TO_TOP = 0x7F7F7F7F7F7F7F7F  # with this, a byte of at least 1 and at most 0x80 has its highest bit set


def plane_bytes(count: int) -> int:
    """Bytes of one plane of so many elements."""
    return (count + 7) // 8


def pack(codes: Tensor, bits: int) -> Tensor:
    """uint8 [bits, ceil(n/8)] of flat uint8 codes below 2**bits; what fills the last byte is 0."""
    missing = -codes.numel() % 8
    eights = (torch.nn.functional.pad(codes, (0, missing)) if missing else codes).view(torch.int64)
    plane = torch.arange(bits, device=codes.device)[:, None]
    # Bit p of each and _GATHER >> p, which loses nothing: their product is as that of bit 0 and _GATHER.
    words = (eights & (_ONES << plane)).mul_(_GATHER >> plane)
    return words.bitwise_right_shift_(56).to(torch.uint8)


def unpack(planes: Tensor, count: int) -> Tensor:
    """The first `count` codes, flat uint8."""
    byte, plane = (torch.arange(size, device=planes.device) for size in (256, len(planes)))
    own = (byte * _ONES) & _OWN_BIT
    eights = (((own + _TO_TOP) >> 7) & _ONES) << plane[:, None]  # what each byte of each plane is of eight codes
    places = planes.to(torch.int32) + 256 * plane[:, None].to(torch.int32)
    return eights.view(-1).index_select(0, places.view(-1)).view(places.shape).sum(0).view(torch.uint8)[:count]
