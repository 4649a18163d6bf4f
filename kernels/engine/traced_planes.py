"""Bit planes in the order of compiled code, see `actfit.kernels.engine.traced`: element k of all bytes is x[:, k]."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

EIGHT = 8  # elements a byte
WORD_PLANES = 4  # bytes of an int32: bit 8p + k is bit p of the k-th element's code
ONES = 0x01010101


def split(x: Tensor) -> Tensor:
    """[lead, 8, n/8] of a contiguous tensor: its last dimensions whose sizes are constants are cut into eight.

    If 8 does not divide their product, the whole tensor is padded with zeros and cut.
    """
    lead = list(x.shape)
    row = 1
    while lead and not isinstance(lead[-1], torch.SymInt):
        row *= lead.pop()
    if row % EIGHT == 0:
        return x.reshape(math.prod(lead), EIGHT, row // EIGHT)
    # Not -n % 8: comparing it with 0 would make a graph for each case.
    return F.pad(x.reshape(-1), (0, EIGHT - x.numel() % EIGHT)).view(1, EIGHT, x.numel() // EIGHT + 1)


def joined(eighths: Tensor, like: Tensor) -> Tensor:
    """The inverse of `split`."""
    return eighths.reshape(-1)[: like.numel()].view(like.shape)


def planes_of(words: Tensor, bits: int) -> Tensor:
    """uint8 [bits, lead, n/8] from int32 [lead, 8, n/8], which has bit p of a code at bit 8p."""
    word = words[:, EIGHT - 1]
    for k in reversed(range(EIGHT - 1)):
        word = (word << 1) | words[:, k]
    return torch.stack([((word >> EIGHT * plane) & 0xFF).to(torch.uint8) for plane in range(bits)])


def word_of(planes: Tensor) -> Tensor:
    """int32 [lead, n/8], plane p in its byte p; of four planes at most."""
    word, *others = planes.to(torch.int32)
    for plane, other in enumerate(others, 1):
        word = word | (other << EIGHT * plane)
    return word


def is_set(word: Tensor, plane: int) -> Tensor:
    """bool [lead, 8, n/8]: bits of a plane; the sign is the fastest test of a bit."""
    place = torch.arange(EIGHT, dtype=torch.int32, device=word.device)
    return (word[:, None] << (31 - EIGHT * plane - place[:, None])) < 0


def four_bits(word: Tensor) -> Tensor:
    """The bits at 0, 8, 16 and 24 as a number below 16."""
    word = word & ONES
    word = word | (word >> 7)
    return (word | (word >> 14)) & 15
