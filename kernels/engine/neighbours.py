"""Codes of groups of neighbours and of few-bit tables on a CPU, in loops that Numba compiles: one pass over memory
instead of a dozen.

The results are those of `actfit.kernels.engine.reference` and `reference_codes`, bit for bit but in NaNs: the same
operations in the same order, and none is fused. Importing this takes Numba, which a checkout that is not
installed may lack, and a moment.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from actfit.kernels.engine import loops
from actfit.kernels.engine.codes import bits_of, room_for
from actfit.kernels.engine.loops import Floats
from actfit.kernels.engine.pieces import groups_of
from actfit.kernels.engine.planes import plane_bytes

BLOCK = 1 << 11  # elements that stay in the nearest cache, and whose packing is worth a call
LEAST = 1 << 18  # elements that are worth a thread, which takes some 50 us to begin


def encode_groups(flat: Tensor, noise: Tensor | None, group_size: int, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, minima and scales of contiguous numbers of at most 32 bits; `noise` float32, None: to the nearest."""
    count, block = len(flat), _block_of(group_size)
    codes = room_for(flat, bits)
    minimum, scale = (flat.new_empty(-(-count // group_size), dtype=torch.float32) for _ in range(2))
    packed, starts, steps = np.atleast_2d(codes.numpy()), minimum.numpy(), scale.numpy()
    added = np.full(1, 0.5, np.float32) if noise is None else noise.detach().numpy()

    for piece in _pieces_of(count, block, flat.dtype == torch.float32):
        x = flat[piece].detach().float().numpy()

        def run(start: int, stop: int, x: Floats = x, first: int = piece.start) -> None:
            part, place = x[start:stop], slice(first + start, first + stop)
            own, groups = added if noise is None else added[place], groups_of(place, group_size)
            ends = starts[groups], steps[groups]
            loops.encode(part, part.view(np.int32), own, group_size, block, bits, packed, place.start // 8, *ends)

        in_threads(len(x), block, run)
    return codes, minimum.bfloat16(), scale.bfloat16()


def decode(codes: Tensor, scale: Tensor, minimum: Tensor, flat: Tensor, group_size: int) -> None:
    """Write code * scale + minimum into `flat`; vectors have an entry for each group, and the computation's type."""
    packed, steps, starts = np.atleast_2d(codes.numpy()), scale.numpy(), minimum.numpy()
    block, bits = _block_of(group_size), bits_of(codes)
    for piece in _pieces_of(len(flat), block, flat.dtype == scale.dtype):
        part = flat[piece]
        made = part if flat.dtype == scale.dtype else torch.empty(part.shape, dtype=scale.dtype)
        values = made.numpy()

        def run(start: int, stop: int, values: Floats = values, first: int = piece.start) -> None:
            of_groups = groups_of(slice(first + start, first + stop), group_size)
            ends = steps[of_groups], starts[of_groups]
            loops.decode(packed, bits, *ends, group_size, block, (first + start) // 8, values[start:stop])

        in_threads(len(values), block, run)
        if made is not part:
            part.copy_(made)


def table_codes(x: Tensor, borders: Sequence[float], codes: Sequence[int], bits: int) -> Tensor:
    """Planes of the codes of a table, for flat numbers of 32 or 64 bits; NaN, above no border, has the first."""
    planes = x.new_empty((bits, plane_bytes(len(x))), dtype=torch.uint8)
    numbers, packed = x.detach().numpy(), planes.numpy()
    limits, order = np.array(borders, numbers.dtype), np.array(codes, np.uint8)
    changes = np.concatenate([order[:1], order[1:] ^ order[:-1]])

    def run(start: int, stop: int) -> None:
        loops.put_table_codes(numbers[start:stop], limits, changes, BLOCK, packed, start // 8)

    in_threads(len(x), BLOCK, run)
    return planes


def _block_of(group_size: int) -> int:
    """Elements that are packed at once: whole groups, and so whole bytes."""
    return group_size * max(1, BLOCK // group_size)


def _pieces_of(count: int, block: int, whole: bool) -> list[slice]:
    """All at once, or, where numbers are converted on the way, pieces of whole blocks: PyTorch has its own threads."""
    length = count if whole else max(LEAST // block, 1) * block * torch.get_num_threads()
    return [slice(start, min(start + length, count)) for start in range(0, count, max(length, 1))]


def in_threads(count: int, block: int, run: Callable[[int, int], None]) -> None:
    """Call `run` with parts of `count` elements that cut no block, in as many threads as PyTorch has, where it pays."""
    threads = max(1, min(torch.get_num_threads(), count // LEAST))
    if threads == 1:
        run(0, count)
        return
    share = -(-count // (threads * block)) * block
    with ThreadPoolExecutor(threads) as pool:
        for part in [pool.submit(run, start, min(start + share, count)) for start in range(0, count, share)]:
            part.result()
