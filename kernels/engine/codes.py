"""What codes of groups have in common on all devices.

Codes of 8 bits are bytes, uint8 [elements], which any loop can read as it goes; those of fewer bits are bit planes,
uint8 [bits, ceil(elements / 8)].
"""

import torch
from torch import Tensor

from actfit.kernels.engine.pieces import bytes_of
from actfit.kernels.engine.planes import plane_bytes

LARGEST_HALF = torch.finfo(torch.float16).max
LEAST_STEP = torch.finfo(torch.float32).tiny  # 2^-126: of less, one over a step may be infinite


def room_for(x: Tensor, bits: int) -> Tensor:
    """Codes of the elements of x that are not written yet."""
    count = x.numel()
    return x.new_empty(count if bits == 8 else (bits, plane_bytes(count)), dtype=torch.uint8)


def bytes_of_codes(count: int, bits: int) -> int:
    """Bytes of so many codes."""
    return count if bits == 8 else bits * plane_bytes(count)


def bits_of(codes: Tensor) -> int:
    """Bits of a code."""
    return 8 if codes.dim() == 1 else len(codes)


def part_of(codes: Tensor, piece: slice) -> Tensor:
    """The codes of some elements, of which the first is one of a plane's byte, too."""
    return codes[piece] if codes.dim() == 1 else codes[:, bytes_of(piece)]


def narrowed(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Decoded values in a dtype; the last code may stand for more than the largest float16, to which it is clamped."""
    made = values.to(dtype)
    return made.clamp(-LARGEST_HALF, LARGEST_HALF) if dtype == torch.float16 else made
