"""Codes of groups of neighbours and of few-bit tables on a CPU, in loops that Numba compiles: one pass over memory
instead of a dozen.

The results are those of `actfit.kernels.engine.reference` and `reference_codes`, bit for bit but in NaNs: the same
operations in the same order, and none is fused. Importing this takes Numba, which a checkout that is not
installed may lack, and a moment.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from torch import Tensor

from actfit.kernels.engine import loops
from actfit.kernels.engine.codes import bits_of, room_for
from actfit.kernels.engine.planes import plane_bytes

BLOCK = 1 << 11  # elements that stay in the nearest cache, and whose packing is worth a call
DTYPES = (torch.float32, torch.bfloat16)  # of the numbers that `encode_groups` and `decode` know
HALF = np.full(1, 0.5, np.float32)
AT_HALF = HALF.ctypes.data
LEAST = 1 << 18  # elements that are worth a thread, which takes some 50 us to begin


def encode_groups(flat: Tensor, noise: Tensor | None, group_size: int, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, minima and scales of contiguous float32 or bfloat16; `noise` float32, None: to the nearest."""
    count = flat.numel()
    codes, minimum = room_for(flat, bits), flat.new_empty(-(-count // group_size), dtype=torch.bfloat16)
    scale = torch.empty_like(minimum)
    added, numbers = (AT_HALF, 1) if noise is None else (noise.data_ptr(), count)
    coded = _coded(codes, minimum, scale, group_size, bits)
    in_threads(count, coded[1], partial(loops.encode, flat.itemsize, flat.data_ptr(), added, numbers, coded))
    return codes, minimum, scale


def decode(codes: Tensor, scale: Tensor, minimum: Tensor, flat: Tensor, group_size: int) -> None:
    """Write code * scale + minimum into `flat`, float32 or bfloat16; vectors: bfloat16 [groups]. All are contiguous."""
    coded = _coded(codes, minimum, scale, group_size, bits_of(codes))
    in_threads(flat.numel(), coded[1], partial(loops.decode, flat.itemsize, flat.data_ptr(), coded))


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


def _coded(codes: Tensor, minimum: Tensor, scale: Tensor, group_size: int, bits: int) -> loops.Coded:
    """Blocks, which are packed at once, have whole groups, and so whole bytes."""
    block = group_size * max(1, BLOCK // group_size)
    return group_size, block, bits, codes.data_ptr(), codes.shape[-1], minimum.data_ptr(), scale.data_ptr()


def in_threads(count: int, block: int, run: Callable[[int, int], None]) -> None:
    """Call `run` with parts of `count` elements that cut no block, in as many threads as PyTorch has, where it pays."""
    threads = min(torch.get_num_threads(), count // LEAST)
    if threads < 2:
        run(0, count)
        return
    share = -(-count // (threads * block)) * block
    with ThreadPoolExecutor(threads) as pool:
        for part in [pool.submit(run, start, min(start + share, count)) for start in range(0, count, share)]:
            part.result()
