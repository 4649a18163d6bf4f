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
from actfit.kernels.engine.loops import Bytes, Words
from actfit.kernels.engine.pieces import groups_of
from actfit.kernels.engine.planes import plane_bytes

BLOCK = 1 << 11  # elements that stay in the nearest cache, and whose packing is worth a call
WORDS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}  # of the numbers that loops know
HALF = np.full(1, 0.5, np.float32)
LEAST = 1 << 18  # elements that are worth a thread, which takes some 50 us to begin


def encode_groups(flat: Tensor, noise: Tensor | None, group_size: int, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, minima and scales of contiguous float32 or bfloat16; `noise` float32, None: to the nearest."""
    count, block = len(flat), _block_of(group_size)
    codes = room_for(flat, bits)
    minimum, scale = (flat.new_empty(-(-count // group_size), dtype=torch.bfloat16) for _ in range(2))
    planes, x, starts, steps = _planes(codes), _words(flat.detach()), _words(minimum), _words(scale)
    added = HALF if noise is None else noise.detach().numpy()

    def run(start: int, stop: int) -> None:
        own, groups = slice(start, stop), groups_of(slice(start, stop), group_size)
        of_own = added if noise is None else added[own]
        loops.encode(x[own], of_own, group_size, block, bits, planes, start // 8, starts[groups], steps[groups])

    in_threads(count, block, run)
    return codes, minimum, scale


def decode(codes: Tensor, scale: Tensor, minimum: Tensor, flat: Tensor, group_size: int) -> None:
    """Write code * scale + minimum into `flat`, float32 or bfloat16; vectors: bfloat16 [groups]."""
    planes, steps, starts, values = _planes(codes), _words(scale), _words(minimum), _words(flat)
    block, bits = _block_of(group_size), bits_of(codes)

    def run(start: int, stop: int) -> None:
        groups = groups_of(slice(start, stop), group_size)
        ends = steps[groups], starts[groups]
        loops.decode(planes, bits, *ends, group_size, block, start // 8, values[start:stop])

    in_threads(len(values), block, run)


def _words(x: Tensor) -> Words:
    """The bits of numbers as integers, in the same memory."""
    words: Words = x.view(WORDS[x.dtype]).numpy()
    return words


def _planes(codes: Tensor) -> Bytes:
    """Codes of 8 bits as one plane."""
    planes: Bytes = codes.numpy() if codes.dim() == 2 else codes.numpy()[None]
    return planes


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
