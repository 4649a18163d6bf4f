"""Codes of groups of neighbours on a CPU, in loops that Numba compiles: one pass over memory instead of a dozen.

The results are those of `kernels.engine.reference_codes`, bit for bit but in NaNs: the same operations in the same
order, and none is fused. Importing this takes Numba, which a checkout that is not installed may lack, and a moment.

Groups have any size, and need not begin at a byte. A loop over a group uses vector instructions only if Numba can tell
that no index is negative; so loops begin with `group_size = max(group_size, 1)`, which changes nothing else.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import lcm
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coefficients.compiled import compiled
from kernels.engine import codes
from kernels.engine.planes import plane_bytes

Floats = NDArray[np.floating]
Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]

LEAST = 1 << 18  # elements that are worth a thread, which takes some 50 us to begin

# Eight codes are one number of 64 bits, as in `kernels.engine.planes`.
ONES, GATHER, TOP_BYTE = np.uint64(0x0101010101010101), np.uint64(0x0102040810204080), np.uint64(56)
_EIGHTS = np.unpackbits(np.arange(256, dtype=np.uint8), bitorder="little").view(np.uint64)  # of each byte of a plane
# Bits of float32 as integers in the order of the numbers; NaNs lie beyond the infinities on either side.
BUT_THE_SIGN, LOWEST, HIGHEST = np.int32(0x7FFFFFFF), np.int32(~0x7F800000), np.int32(0x7F800000)
_NAN, _LOWER_HALF = np.int32(0x7FC00000), np.int32(0xFFFF)
_PARTS, _LEAST_STEP, _MOST_STEP = map(np.float32, (codes.PARTS, codes.LEAST_STEP, codes.MOST_STEP))


def encode_groups(
    flat: Tensor, noise: Tensor | None, group_size: int, bits: int, clipped: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Planes, minima and scales of contiguous numbers of at most 32 bits; `noise` float32, None: to the nearest."""
    count, share = len(flat), np.float32(codes.CLIPPED / (1 << bits) if clipped else 0)
    planes = flat.new_empty((bits, plane_bytes(count)), dtype=torch.uint8)
    minimum, scale = (flat.new_empty(-(-count // group_size), dtype=torch.float32) for _ in range(2))
    packed, starts, steps = planes.numpy(), minimum.numpy(), scale.numpy()
    added = np.full(1, 0.5, np.float32) if noise is None else noise.detach().numpy()
    block = lcm(group_size, 8)  # whole groups in whole bytes
    for piece in pieces_of(count, block, flat.dtype == torch.float32):
        x = flat[piece].detach().float().numpy()

        def run(start: int, stop: int, x: Floats = x, first: int = piece.start) -> None:
            of_groups = groups_of(first + start, first + stop, group_size)
            ends = starts[of_groups], steps[of_groups]
            own = added if noise is None else added[first + start : first + stop]
            part = x[start:stop]
            _encode(part, part.view(np.int32), own, group_size, share, packed, (first + start) // 8, *ends)

        in_threads(len(x), block, run)
    return planes, minimum.bfloat16(), scale.bfloat16()


def decode(planes: Tensor, scale: Tensor, minimum: Tensor, flat: Tensor, group_size: int) -> None:
    """Write code * scale + minimum into `flat`; vectors have an entry for each group, and the computation's type."""
    packed, steps, starts = planes.numpy(), scale.numpy(), minimum.numpy()
    block = lcm(group_size, 8)
    for piece in pieces_of(len(flat), block, flat.dtype == scale.dtype):
        part = flat[piece]
        made = part if flat.dtype == scale.dtype else torch.empty(part.shape, dtype=scale.dtype)
        values = made.numpy()

        def run(start: int, stop: int, values: Floats = values, first: int = piece.start) -> None:
            of_groups = groups_of(first + start, first + stop, group_size)
            ends = steps[of_groups], starts[of_groups]
            _decode(packed, *ends, _EIGHTS, group_size, (first + start) // 8, values[start:stop])

        in_threads(len(values), block, run)
        if made is not part:
            part.copy_(made)


def groups_of(start: int, stop: int, group_size: int) -> slice:
    """The groups of the elements from `start`, where one begins, to `stop`."""
    return slice(start // group_size, -(-stop // group_size))


def pieces_of(count: int, block: int, whole: bool) -> list[slice]:
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


def _encode_loop(
    x: Floats,
    x_bits: NDArray[np.int32],
    noise: Floats,
    group_size: int,
    share: np.float32,
    planes: Bytes,
    first: int,
    minimum: Floats,
    scale: Floats,
) -> None:
    """first: the byte of a plane where these codes begin. noise: for each number, or one for all.

    share: of its range by which an end of a group may move inwards; 0: none moves.
    """
    group_size = max(group_size, 1)
    codes = np.zeros((group_size + 7) // 8 * 8, np.uint8)
    words, most = codes.view(np.uint64), np.float32((1 << len(planes)) - 1)
    number = np.empty(1, np.float32)
    number_bits = number.view(np.int32)
    for group in range(len(minimum)):
        begin = group * group_size
        count = min(group_size, len(x) - begin)
        codes[count:] = 0
        low, high = BUT_THE_SIGN, ~BUT_THE_SIGN
        for i in range(count):
            key = x_bits[begin + i] ^ ((x_bits[begin + i] >> np.int32(31)) & BUT_THE_SIGN)
            low, high = min(low, key), max(high, key)
        has_nan = low < LOWEST or high > HIGHEST
        number_bits[0] = _NAN if has_nan else low ^ ((low >> np.int32(31)) & BUT_THE_SIGN)
        lowest = number[0]
        number_bits[0] = _NAN if has_nan else high ^ ((high >> np.int32(31)) & BUT_THE_SIGN)
        highest = number[0]
        start = np.float32(0) - round_up(-lowest, number, number_bits)  # 0, not -0, of zeros with any signs
        step = round_up((highest - start + np.float32(0)) / most, number, number_bits)
        if share > 0 and _LEAST_STEP <= step <= _MOST_STEP:
            start, step = _clip(x[begin : begin + count], lowest, highest, start, step, share, most)
        minimum[group], scale[group] = start, step
        inverse = np.float32(1) / step if step > 0 else np.float32(0)
        for i in range(count):
            place = np.floor((x[begin + i] - start) * inverse + (noise[0] if len(noise) == 1 else noise[begin + i]))
            place = place if place > 0 else np.float32(0)  # and of NaN
            codes[i] = np.int32(place if place < most else most)
        put_words(words, count, planes, first, begin, len(x))


def _put(words: Words, count: int, planes: Bytes, first: int, begin: int, end: int) -> None:
    """Write `count` codes, of which each word has eight, into planes, from code `begin` on of those from byte `first`.

    What comes before them must be there. end: where the last codes of the planes end.
    """
    shift, count_words = np.uint64(begin % 8), (count + 7) // 8
    byte, last = first + begin // 8, first + (end + 7) // 8
    for plane in range(len(planes)):
        carried = np.uint64(planes[plane, byte]) if shift > 0 else np.uint64(0)
        for word in range(count_words):
            bits = (((words[word] >> np.uint64(plane)) & ONES) * GATHER) >> TOP_BYTE
            planes[plane, byte + word] = carried | bits << shift
            carried = bits >> (np.uint64(8) - shift)
        if byte + count_words < last:
            planes[plane, byte + count_words] = carried


def _up(value: Any, number: Floats, number_bits: NDArray[np.int32]) -> Any:
    """The value rounded up to bfloat16, which has the upper half of its bits; `number` has room for one."""
    number[0] = value
    if value > 0:
        number_bits[0] += _LOWER_HALF
    number_bits[0] &= ~_LOWER_HALF
    return number[0]


def _clip_group(
    x: Floats,
    lowest: np.float32,
    highest: np.float32,
    start: np.float32,
    step: np.float32,
    share: np.float32,
    most: np.float32,
) -> tuple[np.float32, np.float32]:
    """Start and step of the whole range, or of that with one end or both moved inwards, by the least error."""
    number = np.empty(1, np.float32)
    number_bits = number.view(np.int32)
    cut, unit, whole = (highest - lowest) * share, np.float32(1) / step, (start, step)
    inner = start if lowest == 0 else np.float32(0) - round_up(-(lowest + cut), number, number_bits)
    upper = highest if highest == 0 else highest - cut
    least = _missed(x, start, step, unit, most)
    for way in (1, 2, 3):  # bit 0: the lower end moves; bit 1: the upper
        begin = inner if way & 1 else whole[0]
        width = round_up(((upper if way & 2 else highest) - begin + np.float32(0)) / most, number, number_bits)
        error = _missed(x, begin, width, unit, most)
        if error < least:
            start, step, least = begin, width, error
    return start, step


def _squared_errors(x: Floats, start: np.float32, step: np.float32, unit: np.float32, most: np.float32) -> np.int32:
    """The sum of the squared errors of decoded values, in parts of 1 / unit²."""
    inverse, total = np.float32(1) / step if step > 0 else np.float32(0), np.int32(0)
    for i in range(len(x)):
        place = np.floor((x[i] - start) * inverse + np.float32(0.5))
        place = place if place > 0 else np.float32(0)
        place = place if place < most else most
        missed = (x[i] - (place * step + start)) * unit
        total = np.int32(total + np.int32(missed * missed * _PARTS))
    return total


def _decode_loop(
    planes: Bytes, scale: Floats, minimum: Floats, eights: Words, group_size: int, first: int, values: Floats
) -> None:
    group_size = max(group_size, 1)
    codes = np.empty((group_size + 7) // 8 * 8, np.uint8)
    words, last = codes.view(np.uint64), first + (len(values) - 1) // 8
    for group in range(len(scale)):
        begin = group * group_size
        count = min(group_size, len(values) - begin)
        shift = begin % 8
        for word in range((count + 7) // 8):
            eight, byte = np.uint64(0), first + begin // 8 + word
            for plane in range(len(planes)):
                bits = planes[plane, byte]
                if shift > 0:
                    bits = (bits | planes[plane, min(byte + 1, last)] << 8) >> shift & 255
                eight |= eights[bits] << np.uint64(plane)
            words[word] = eight
        for i in range(count):
            values[begin + i] = values.dtype.type(codes[i]) * scale[group] + minimum[group]


put_words = compiled(_put, nogil=True)
round_up, _missed = compiled(_up, nogil=True), compiled(_squared_errors, nogil=True)
_clip = compiled(_clip_group, nogil=True)
_encode, _decode = compiled(_encode_loop, nogil=True), compiled(_decode_loop, nogil=True)
