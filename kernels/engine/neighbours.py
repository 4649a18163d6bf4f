"""Codes of groups of neighbours on a CPU, in loops that Numba compiles: one pass over memory instead of a dozen.

The results are those of `kernels.engine.reference_codes`, bit for bit: the same operations in the same order, and none
is fused. Importing this takes Numba, which is optional here, and a moment.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coefficients.compiled import compiled
from kernels.engine.pieces import pieces

Floats = NDArray[np.floating]
Bytes = NDArray[np.uint8]

LEAST = 1 << 18  # elements that are worth a thread, which takes some 50 us to begin

# Eight codes are one number of 64 bits, as in `kernels.engine.planes`.
_ONES, _GATHER, _TOP_BYTE = np.uint64(0x0101010101010101), np.uint64(0x0102040810204080), np.uint64(56)
_BYTE = np.arange(256, dtype=np.uint64)  # the codes of each byte of a plane:
_EIGHTS: NDArray[np.uint64] = sum(((_BYTE >> np.uint64(k)) & np.uint64(1)) << np.uint64(8 * k) for k in range(8))  # type: ignore[assignment]


def encode(
    flat: Tensor, center: Tensor, inverse_scale: Tensor, offset: Tensor, noise: Tensor, planes: Tensor, group_size: int
) -> None:
    """Write the codes of flat numbers into uint8 planes [bits, ceil(n/8)]; vectors have an entry for each group.

    All are of the type of the computation but `flat`, which may have 16 bits. `noise` has n entries, or one.
    """
    centers, inverses, offsets = center.numpy(), inverse_scale.numpy(), offset.numpy()
    numbers, single, packed = noise.numpy(), noise.numel() == 1, planes.numpy()

    def run(start: int, stop: int) -> None:
        for piece in _pieces(flat, center.dtype, start, stop, group_size):
            groups = slice(piece.start // group_size, -(-piece.stop // group_size))
            x = flat[piece].to(center.dtype).numpy()
            own = numbers if single else numbers[piece]
            ends = centers[groups], inverses[groups], offsets[groups]
            _encode(x, *ends, own, group_size, packed, piece.start // 8)

    _in_threads(len(flat), group_size, run)


def decode(planes: Tensor, scale: Tensor, minimum: Tensor, flat: Tensor, group_size: int) -> None:
    """Write code * scale + minimum into `flat`; vectors have an entry for each group, and the computation's type."""
    packed, steps, starts = planes.numpy(), scale.numpy(), minimum.numpy()

    def run(start: int, stop: int) -> None:
        for piece in _pieces(flat, scale.dtype, start, stop, group_size):
            groups = slice(piece.start // group_size, -(-piece.stop // group_size))
            part = flat[piece]
            values = part if flat.dtype == scale.dtype else part.to(scale.dtype)
            _decode(packed, steps[groups], starts[groups], _EIGHTS, group_size, piece.start // 8, values.numpy())
            if values is not part:
                part.copy_(values)

    _in_threads(len(flat), group_size, run)


def _pieces(flat: Tensor, computed: torch.dtype, start: int, stop: int, group_size: int) -> list[slice]:
    """All at once, or pieces that stay in a cache if numbers are converted on the way."""
    if flat.dtype == computed:
        return [slice(start, stop)]
    return [slice(start + piece.start, start + piece.stop) for piece in pieces(stop - start, (group_size,))]


def _in_threads(count: int, group_size: int, run: Callable[[int, int], None]) -> None:
    """Call `run` with parts of `count` elements that cut no group, in as many threads as PyTorch has, where it pays."""
    threads = max(1, min(torch.get_num_threads(), count // LEAST))
    if threads == 1:
        run(0, count)
        return
    share = -(-count // (threads * group_size)) * group_size
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(run, start, min(start + share, count)) for start in range(0, count, share)]:
            done.result()


def _encode_groups(
    x: Floats,
    center: Floats,
    inverse_scale: Floats,
    offset: Floats,
    noise: Floats,
    group_size: int,
    planes: Bytes,
    first: int,
) -> None:
    codes = np.zeros(group_size, np.uint8)
    words = codes.view(np.uint64)
    most = (1 << len(planes)) - 1
    for group in range(len(center)):
        begin = group * group_size
        count = min(group_size, len(x) - begin)
        if count < group_size:
            codes[:] = 0
        for i in range(count):
            added = noise[0] if len(noise) == 1 else noise[begin + i]
            place = np.floor((x[begin + i] - center[group]) * inverse_scale[group] + added) + offset[group]
            place = place if place > 0 else x.dtype.type(0)  # and of NaN
            codes[i] = np.int32(place if place < most else x.dtype.type(most))
        for word in range((count + 7) // 8):
            for plane in range(len(planes)):
                bits = ((words[word] >> np.uint64(plane)) & _ONES) * _GATHER
                planes[plane, first + begin // 8 + word] = bits >> _TOP_BYTE


def _decode_groups(
    planes: Bytes,
    scale: Floats,
    minimum: Floats,
    eights: NDArray[np.uint64],
    group_size: int,
    first: int,
    values: Floats,
) -> None:
    codes = np.empty(group_size, np.uint8)
    words = codes.view(np.uint64)
    for group in range(len(scale)):
        begin = group * group_size
        count = min(group_size, len(values) - begin)
        for word in range((count + 7) // 8):
            eight = np.uint64(0)
            for plane in range(len(planes)):
                eight |= eights[planes[plane, first + begin // 8 + word]] << np.uint64(plane)
            words[word] = eight
        for i in range(count):
            values[begin + i] = values.dtype.type(codes[i]) * scale[group] + minimum[group]


_encode, _decode = compiled(_encode_groups, nogil=True), compiled(_decode_groups, nogil=True)
