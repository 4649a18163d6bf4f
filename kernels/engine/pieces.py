"""Flat tensors piece by piece, so that intermediate results take little memory and stay in caches."""

from collections.abc import Iterator

import torch

from actfit.kernels.engine.planes import plane_bytes

# Elements of a piece. With fewer, calls take longer than the operations. With more, intermediate results neither fit
# into a cache of 1 MiB nor stay below the size that malloc returns to the system at once, to be mapped anew by pages.
_LEAST = 1 << 17
_A_THREAD = 1 << 16


def pieces(count: int, group_size: int = 8) -> Iterator[slice]:
    """Slices of `count` elements, which cut no group, and so no byte of a bit plane."""
    length = max(max(_LEAST, _A_THREAD * torch.get_num_threads()) // group_size, 1) * group_size
    return (slice(start, min(start + length, count)) for start in range(0, count, length))


def groups_of(piece: slice, group_size: int) -> slice:
    """The groups of a piece that begins where one does."""
    return slice(piece.start // group_size, -(-piece.stop // group_size))


def bytes_of(piece: slice) -> slice:
    """The bytes of a piece in a bit plane."""
    return slice(piece.start // 8, plane_bytes(piece.stop))
