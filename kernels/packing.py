"""Bit planes in plain PyTorch: plane p of `codes` holds bit p of each, eight elements a byte, the first one lowest."""

import torch
from torch import Tensor


def plane_bytes(count: int) -> int:
    """Bytes of one plane of so many elements."""
    return (count + 7) // 8


def pack(codes: Tensor, bits: int) -> Tensor:
    """uint8 [bits, ceil(n/8)] of flat uint8 codes below 2**bits; what fills the last byte is 0."""
    padded = torch.nn.functional.pad(codes, (0, -codes.numel() % 8)).view(-1, 8)
    planes = []
    for plane in range(bits):
        bit = (padded >> plane) & 1
        byte = bit[:, 0].clone()
        for k in range(1, 8):
            byte |= bit[:, k] << k
        planes.append(byte)
    return torch.stack(planes) if planes else codes.new_empty((0, padded.shape[0]))


def unpack(planes: Tensor, count: int) -> Tensor:
    """The first `count` codes, flat uint8."""
    shifts = torch.arange(8, dtype=torch.uint8, device=planes.device)
    codes = planes.new_zeros(planes.shape[1] * 8)
    for plane, bytes_ in enumerate(planes):
        codes |= ((bytes_[:, None] >> shifts) & 1).flatten() << plane
    return codes[:count]
