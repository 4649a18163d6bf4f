"""What codes of groups have in common on all devices.

Codes of 8 bits are bytes, uint8 [elements], which any loop can read as it goes; those of fewer bits are bit planes,
uint8 [bits, ceil(elements / 8)].
"""

from collections.abc import Callable

import torch
from torch import Tensor

from actfit.kernels.engine.elements import computed
from actfit.kernels.engine.pieces import bytes_of
from actfit.kernels.engine.planes import plane_bytes

LARGEST_HALF = torch.finfo(torch.float16).max  # to which what decodes to more is clamped, as the last code may
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


def in_two_steps(
    ends: Callable[..., tuple[Tensor, Tensor]],
    encode: Callable[..., Tensor],
    x: Tensor,
    noise: Tensor | None,
    group_size: int,
    bits: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, minima and scales of x, as by the op `encode_groups`: the ends of all groups, then their codes."""
    minimum, scale = ends(x, group_size, bits)
    wide = computed(x.dtype)
    noise = torch.full((1,), 0.5, dtype=wide, device=x.device) if noise is None else noise.to(wide)
    return encode(x, minimum, 1 / scale.to(wide), torch.zeros_like(minimum), noise, group_size, bits), minimum, scale
