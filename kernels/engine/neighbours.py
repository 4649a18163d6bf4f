"""Codes of groups of neighbours on a CPU, in loops that Numba compiles: one pass over memory instead of a dozen.

The results are those of `kernels.engine.reference_codes`, bit for bit but in NaNs: the same operations in the same
order, and none is fused. Importing this takes Numba, which a checkout that is not installed may lack, and a moment.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import lcm

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coefficients.compiled import compiled
from kernels.engine.planes import plane_bytes

Floats = NDArray[np.floating]
Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]

LEAST = 1 << 18  # elements that are worth a thread, which takes some 50 us to begin

# Eight codes are one number of 64 bits, as in `kernels.engine.planes`.
_ONES, _GATHER, _TOP_BYTE = np.uint64(0x0101010101010101), np.uint64(0x0102040810204080), np.uint64(56)
_EIGHTS = np.unpackbits(np.arange(256, dtype=np.uint8), bitorder="little").view(np.uint64)  # of each byte of a plane
# Bits of float32 as integers in the order of the numbers; NaNs lie beyond the infinities on either side.
_BUT_THE_SIGN, _LOWEST, _HIGHEST = np.int32(0x7FFFFFFF), np.int32(~0x7F800000), np.int32(0x7F800000)
_NAN, _LOWER_HALF = np.int32(0x7FC00000), np.int32(0xFFFF)


def encode_groups(flat: Tensor, noise: Tensor | None, group_size: int, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Planes, minima and scales of contiguous numbers of at most 32 bits; `noise` float32, None: to the nearest."""
    count = len(flat)
    planes = flat.new_empty((bits, plane_bytes(count)), dtype=torch.uint8)
    minimum, scale = (flat.new_empty(-(-count // group_size), dtype=torch.float32) for _ in range(2))
    packed, starts, steps = planes.numpy(), minimum.numpy(), scale.numpy()
    added = np.full(1, 0.5, np.float32) if noise is None else noise.detach().numpy()
    for piece in _pieces(count, group_size, flat.dtype == torch.float32):
        x = flat[piece].detach().float().numpy()

        def run(start: int, stop: int, x: Floats = x, first: int = piece.start) -> None:
            of_groups = _groups_of(first + start, first + stop, group_size)
            ends = starts[of_groups], steps[of_groups]
            own = added if noise is None else added[first + start : first + stop]
            part = x[start:stop]
            _encode(part, part.view(np.int32), own, group_size, packed, (first + start) // 8, *ends)

        _in_threads(len(x), group_size, run)
    return planes, minimum.bfloat16(), scale.bfloat16()


def encode_sides(flat: Tensor, inside: Tensor, group_size: int, bits: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Planes, minima, scales and edges of contiguous numbers of at most 32 bits, and bools; groups of any size."""
    count = len(flat)
    planes, groups = flat.new_empty((bits, plane_bytes(count)), dtype=torch.uint8), -(-count // group_size)
    minimum, scale = (flat.new_empty(groups, dtype=torch.float32) for _ in range(2))
    edge = flat.new_empty(groups, dtype=torch.uint8)
    packed, sides = planes.numpy(), inside.numpy()
    starts, steps, edges = minimum.numpy(), scale.numpy(), edge.numpy()
    block = lcm(group_size, 8)  # whole groups in whole bytes
    for piece in _pieces(count, block, flat.dtype == torch.float32):
        x = flat[piece].detach().float().numpy()

        def run(start: int, stop: int, x: Floats = x, first: int = piece.start) -> None:
            of_groups = _groups_of(first + start, first + stop, group_size)
            ends = starts[of_groups], steps[of_groups], edges[of_groups]
            own = sides[first + start : first + stop]
            part = x[start:stop]
            _encode_sides(part, part.view(np.int32), own, group_size, block, packed, (first + start) // 8, *ends)

        _in_threads(len(x), block, run)
    return planes, minimum.bfloat16(), scale.bfloat16(), edge


def decode(planes: Tensor, scale: Tensor, minimum: Tensor, flat: Tensor, group_size: int) -> None:
    """Write code * scale + minimum into `flat`; vectors have an entry for each group, and the computation's type."""
    packed, steps, starts = planes.numpy(), scale.numpy(), minimum.numpy()
    for piece in _pieces(len(flat), group_size, flat.dtype == scale.dtype):
        part = flat[piece]
        made = part if flat.dtype == scale.dtype else torch.empty(part.shape, dtype=scale.dtype)
        values = made.numpy()

        def run(start: int, stop: int, values: Floats = values, first: int = piece.start) -> None:
            of_groups = _groups_of(first + start, first + stop, group_size)
            ends = steps[of_groups], starts[of_groups]
            _decode(packed, *ends, _EIGHTS, group_size, (first + start) // 8, values[start:stop])

        _in_threads(len(values), group_size, run)
        if made is not part:
            part.copy_(made)


def _groups_of(start: int, stop: int, group_size: int) -> slice:
    """The groups of the elements from `start`, where one begins, to `stop`."""
    return slice(start // group_size, -(-stop // group_size))


def _pieces(count: int, group_size: int, whole: bool) -> list[slice]:
    """All at once, or, where numbers are converted on the way, pieces of whole groups: PyTorch has its own threads."""
    length = count if whole else max(LEAST // group_size, 1) * group_size * torch.get_num_threads()
    return [slice(start, min(start + length, count)) for start in range(0, count, max(length, 1))]


def _in_threads(count: int, group_size: int, run: Callable[[int, int], None]) -> None:
    """Call `run` with parts of `count` elements that cut no group, in as many threads as PyTorch has, where it pays."""
    threads = max(1, min(torch.get_num_threads(), count // LEAST))
    if threads == 1:
        run(0, count)
        return
    share = -(-count // (threads * group_size)) * group_size
    with ThreadPoolExecutor(threads) as pool:
        for part in [pool.submit(run, start, min(start + share, count)) for start in range(0, count, share)]:
            part.result()


def _encode_loop(
    x: Floats,
    x_bits: NDArray[np.int32],
    noise: Floats,
    group_size: int,
    planes: Bytes,
    first: int,
    minimum: Floats,
    scale: Floats,
) -> None:
    """first: the byte of a plane where these codes begin. noise: for each number, or one for all."""
    codes = np.zeros(group_size, np.uint8)
    words, most = codes.view(np.uint64), np.float32((1 << len(planes)) - 1)
    number = np.empty(1, np.float32)
    number_bits = number.view(np.int32)
    for group in range(len(minimum)):
        begin = group * group_size
        count = min(group_size, len(x) - begin)
        codes[count:] = 0
        low, high = _BUT_THE_SIGN, ~_BUT_THE_SIGN
        for i in range(count):
            key = x_bits[begin + i] ^ ((x_bits[begin + i] >> np.int32(31)) & _BUT_THE_SIGN)
            low, high = min(low, key), max(high, key)
        has_nan = low < _LOWEST or high > _HIGHEST
        number_bits[0] = _NAN if has_nan else low ^ ((low >> np.int32(31)) & _BUT_THE_SIGN)
        number[0] = -number[0]
        _round_up(number, number_bits)
        start = -number[0]
        number_bits[0] = _NAN if has_nan else high ^ ((high >> np.int32(31)) & _BUT_THE_SIGN)
        number[0] = (number[0] - start) / most
        _round_up(number, number_bits)
        minimum[group], scale[group] = start, number[0]
        inverse = np.float32(1) / number[0] if number[0] > 0 else np.float32(0)
        for i in range(count):
            place = np.floor((x[begin + i] - start) * inverse + (noise[0] if len(noise) == 1 else noise[begin + i]))
            place = place if place > 0 else np.float32(0)  # and of NaN
            codes[i] = np.int32(place if place < most else most)
        for word in range((count + 7) // 8):
            for plane in range(len(planes)):
                bits = ((words[word] >> np.uint64(plane)) & _ONES) * _GATHER
                planes[plane, first + begin // 8 + word] = bits >> _TOP_BYTE


def _encode_sides_loop(
    x: Floats,
    x_bits: NDArray[np.int32],
    inside: NDArray[np.bool_],
    group_size: int,
    block: int,
    planes: Bytes,
    first: int,
    minimum: Floats,
    scale: Floats,
    edges: Bytes,
) -> None:
    """As `sides_of_groups` of `kernels.engine.reference_codes`.

    block: elements of whole groups that are packed at once. first: the byte of a plane where these codes begin.
    """
    codes, own = np.zeros(block, np.uint8), np.empty(group_size, np.uint8)
    words, unit, half = codes.view(np.uint64), np.float32(1), np.float32(0.5)
    levels = np.float32(1 << len(planes))
    most = levels - unit
    number = np.empty(4, np.float32)
    number_bits = number.view(np.int32)
    for group in range(len(minimum)):
        begin = group * group_size
        count = min(group_size, len(x) - begin)
        filled = begin % block
        bottom, top, other_bottom, other_top = _BUT_THE_SIGN, ~_BUT_THE_SIGN, _BUT_THE_SIGN, ~_BUT_THE_SIGN
        for i in range(count):
            key = x_bits[begin + i] ^ ((x_bits[begin + i] >> np.int32(31)) & _BUT_THE_SIGN)
            is_inside = inside[begin + i]
            bottom, top = (
                min(bottom, key if is_inside else _BUT_THE_SIGN),
                max(top, key if is_inside else ~_BUT_THE_SIGN),
            )
            other_bottom = min(other_bottom, _BUT_THE_SIGN if is_inside else key)
            other_top = max(other_top, ~_BUT_THE_SIGN if is_inside else key)
        has_both = bottom <= top and other_bottom <= other_top
        rises = top >= other_top if has_both else inside[begin]
        least, largest = min(bottom, other_bottom), max(top, other_top)
        below, above = (other_top, bottom) if rises else (top, other_bottom)
        for end, key in enumerate((least, largest, below, above)):
            number_bits[end] = key ^ ((key >> np.int32(31)) & _BUT_THE_SIGN)
        low, high, threshold = number[0], number[1], (number[2] + number[3]) / np.float32(2)
        is_finite = least > _LOWEST and largest < _HIGHEST and np.isfinite(high - low)
        edge = np.float32(0)
        if not is_finite:
            minimum[group], scale[group], inverse = np.nan, np.inf, np.float32(0)
            rises, edge = rises or has_both, unit if has_both else edge
        else:
            step, start, reach = np.float32(0), low, most
            divided = has_both and high > low and np.isfinite(threshold)
            if divided:
                share = levels * ((threshold - low) / (high - low))
                fewer = min(max(np.floor(share), unit), most)
                more = min(max(np.ceil(share), unit), most)
                step = max((threshold - low) / fewer, (high - threshold) / (levels - fewer))
                other = max((threshold - low) / more, (high - threshold) / (levels - more))
                fewer = fewer if step <= other else more
                step, reach = min(step, other), levels - half
                start = threshold - (fewer - half) * step
            number[0] = -start
            _round_up(number, number_bits)
            start = -number[0]
            number[0] = max(step, (high - start) / reach)
            _round_up(number, number_bits)
            minimum[group], scale[group] = start, number[0]
            inverse = unit / number[0] if number[0] > 0 else np.float32(0)
            if has_both:
                edge = np.floor((threshold - start) * inverse + unit)
                edge = edge if edge > unit else unit  # and of NaN
                edge = edge if edge < most else most
        edges[group] = np.uint8(edge)
        if not rises:
            scale[group] = -scale[group]
        upper = most if rises or not has_both else edge - unit
        lower = edge if rises else np.float32(0)
        other_upper = edge - unit if rises and has_both else most
        other_lower = np.float32(0) if rises else edge
        for i in range(count):
            is_inside = inside[begin + i]
            place = np.floor((x[begin + i] - minimum[group]) * inverse + half)
            place = (
                max(place, lower if is_inside else other_lower) if place > 0 else lower if is_inside else other_lower
            )
            place = min(place, upper if is_inside else other_upper)
            own[i] = np.int32(place)
        codes[filled : filled + count] = own[:count]
        filled += count
        if filled < block and group + 1 < len(minimum):
            continue
        codes[filled:] = 0
        for word in range((filled + 7) // 8):
            for plane in range(len(planes)):
                bits = ((words[word] >> np.uint64(plane)) & _ONES) * _GATHER
                planes[plane, first + (begin + count - filled) // 8 + word] = bits >> _TOP_BYTE


def _up(number: Floats, number_bits: NDArray[np.int32]) -> None:
    """Round a number up to bfloat16, which has the upper half of its bits."""
    if number[0] > 0:
        number_bits[0] += _LOWER_HALF
    number_bits[0] &= ~_LOWER_HALF


def _decode_loop(
    planes: Bytes, scale: Floats, minimum: Floats, eights: Words, group_size: int, first: int, values: Floats
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


_round_up = compiled(_up, nogil=True)
_encode_sides = compiled(_encode_sides_loop, nogil=True)
_encode, _decode = compiled(_encode_loop, nogil=True), compiled(_decode_loop, nogil=True)
