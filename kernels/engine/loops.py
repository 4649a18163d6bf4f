"""The loops of `kernels.engine.neighbours`, which Numba compiles.

All in one file, as they call one another: Numba's cache of a function does not know when one in another file changes.

Groups have any size, and need not begin at a byte. A loop over a group uses vector instructions only if Numba can tell
that no index is negative; so loops begin with `group_size = max(group_size, 1)`, which changes nothing else.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coefficients.compiled import compiled
from kernels.engine import codes

Floats = NDArray[np.floating]
Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]

# Eight codes are one number of 64 bits, as in `kernels.engine.planes`.
ONES, GATHER, TOP_BYTE = np.uint64(0x0101010101010101), np.uint64(0x0102040810204080), np.uint64(56)
EIGHTS = np.unpackbits(np.arange(256, dtype=np.uint8), bitorder="little").view(np.uint64)  # of each byte of a plane
# Bits of float32 as integers in the order of the numbers; NaNs lie beyond the infinities on either side.
BUT_THE_SIGN, LOWEST, HIGHEST = np.int32(0x7FFFFFFF), np.int32(~0x7F800000), np.int32(0x7F800000)
NAN, LOWER_HALF = np.int32(0x7FC00000), np.int32(0xFFFF)
PARTS, LEAST_STEP, MOST_STEP = map(np.float32, (codes.PARTS, codes.LEAST_STEP, codes.MOST_STEP))
UNIT, HALF = np.float32(1), np.float32(0.5)


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
        number_bits[0] = NAN if has_nan else low ^ ((low >> np.int32(31)) & BUT_THE_SIGN)
        lowest = number[0]
        number_bits[0] = NAN if has_nan else high ^ ((high >> np.int32(31)) & BUT_THE_SIGN)
        highest = number[0]
        start = np.float32(0) - _up(-lowest, number, number_bits)  # 0, not -0, of zeros with any signs
        step = _up((highest - start + np.float32(0)) / most, number, number_bits)
        if share > 0 and LEAST_STEP <= step <= MOST_STEP:
            start, step = _clip(x[begin : begin + count], lowest, highest, start, step, share, most)
        minimum[group], scale[group] = start, step
        inverse = np.float32(1) / step if step > 0 else np.float32(0)
        for i in range(count):
            place = np.floor((x[begin + i] - start) * inverse + (noise[0] if len(noise) == 1 else noise[begin + i]))
            place = place if place > 0 else np.float32(0)  # and of NaN
            codes[i] = np.int32(place if place < most else most)
        _put(words, count, planes, first, begin, len(x))


def _put_codes(words: Words, count: int, planes: Bytes, first: int, begin: int, end: int) -> None:
    """Write `count` codes, of which each word has eight, into planes, from code `begin` on of those from byte `first`.

    What comes before them must be there. The byte after them is written, too: the codes that follow write it again.
    end: where the last codes of the planes end.
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


def _rounded_up(value: Any, number: Floats, number_bits: NDArray[np.int32]) -> Any:
    """The value rounded up to bfloat16, which has the upper half of its bits; `number` has room for one."""
    number[0] = value
    if value > 0:
        number_bits[0] += LOWER_HALF
    number_bits[0] &= ~LOWER_HALF
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
    inner = start if lowest == 0 else np.float32(0) - _up(-(lowest + cut), number, number_bits)
    upper = highest if highest == 0 else highest - cut
    least = _missed(x, start, step, unit, most)
    for way in (1, 2, 3):  # bit 0: the lower end moves; bit 1: the upper
        begin = inner if way & 1 else whole[0]
        width = _up(((upper if way & 2 else highest) - begin + np.float32(0)) / most, number, number_bits)
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
        total = np.int32(total + np.int32(missed * missed * PARTS))
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


def _encode_sides_loop(
    x: Floats,
    x_bits: NDArray[np.int32],
    inside: Bools,
    group_size: int,
    planes: Bytes,
    first: int,
    minimum: Floats,
    scale: Floats,
    edges: Bytes,
) -> None:
    """first: the byte of a plane where these codes begin."""
    group_size = max(group_size, 1)
    codes = np.zeros((group_size + 7) // 8 * 8, np.uint8)
    words, levels = codes.view(np.uint64), np.float32(1 << len(planes))
    most = levels - UNIT
    number = np.empty(4, np.float32)
    number_bits = number.view(np.int32)
    for group in range(len(minimum)):
        begin = group * group_size
        count = min(group_size, len(x) - begin)
        codes[count:] = 0
        own, sides = x[begin : begin + count], inside[begin : begin + count]
        bottom, top, other_bottom, other_top = _ends(x_bits[begin : begin + count], sides)
        has_both = bottom <= top and other_bottom <= other_top
        rises = top >= other_top if has_both else sides[0]
        least, largest = min(bottom, other_bottom), max(top, other_top)
        below, above = (other_top, bottom) if rises else (top, other_bottom)
        for end, key in enumerate((least, largest, below, above)):
            number_bits[end] = key ^ ((key >> np.int32(31)) & BUT_THE_SIGN)
        low, high, threshold = number[0], number[1], (number[2] + number[3]) / np.float32(2)
        start, step, inverse, edge = np.float32(np.nan), np.float32(np.inf), np.float32(0), np.float32(0)
        if least > LOWEST and largest < HIGHEST and np.isfinite(high - low):
            start, step, reach = _grid(low, high, threshold, levels, has_both)
            start = -_up(-start, number, number_bits)
            step = _up(max(step, (high - start) / reach), number, number_bits)
            inverse = UNIT / step if step > 0 else np.float32(0)
            if has_both:
                edge = np.floor((threshold - start) * inverse + UNIT)
                edge = min(edge if edge > UNIT else UNIT, most)  # 1 of NaN
        elif has_both:
            rises, edge = True, UNIT
        minimum[group], scale[group], edges[group] = start, step if rises else -step, np.uint8(edge)
        lower, upper = (edge, most) if rises or not has_both else (np.float32(0), edge - UNIT)
        other_lower, other_upper = (np.float32(0), edge - UNIT) if rises and has_both else (edge, most)
        for i in range(count):
            least_code, most_code = (lower, upper) if sides[i] else (other_lower, other_upper)
            place = np.floor((own[i] - start) * inverse + HALF)
            place = place if place > least_code else least_code  # and of NaN
            codes[i] = np.int32(min(place, most_code))
        _put(words, count, planes, first, begin, len(x))


def _ends_of_sides(x_bits: NDArray[np.int32], inside: Bools) -> tuple[np.int32, np.int32, np.int32, np.int32]:
    """The least and the largest key inside, then outside; with none, least > largest."""
    bottom, top, other_bottom, other_top = BUT_THE_SIGN, ~BUT_THE_SIGN, BUT_THE_SIGN, ~BUT_THE_SIGN
    for i in range(len(x_bits)):
        key = x_bits[i] ^ ((x_bits[i] >> np.int32(31)) & BUT_THE_SIGN)
        key = np.int32(0) if key == np.int32(-1) else key  # of -0, which is no less than 0
        is_inside = inside[i]
        bottom, top = min(bottom, key if is_inside else BUT_THE_SIGN), max(top, key if is_inside else ~BUT_THE_SIGN)
        other_bottom = min(other_bottom, BUT_THE_SIGN if is_inside else key)
        other_top = max(other_top, ~BUT_THE_SIGN if is_inside else key)
    return bottom, top, other_bottom, other_top


def _grid_of_group(
    low: np.float32, high: np.float32, threshold: np.float32, levels: np.float32, has_both: bool | np.bool_
) -> tuple[np.float32, np.float32, np.float32]:
    """Start and scale, not rounded yet, and the scales that the codes reach from the start."""
    if not (has_both and high > low and np.isfinite(threshold)):
        return low, np.float32(0), levels - UNIT
    share = levels * ((threshold - low) / (high - low))
    fewer = min(max(np.floor(share), UNIT), levels - UNIT)
    more = min(max(np.ceil(share), UNIT), levels - UNIT)
    step = max((threshold - low) / fewer, (high - threshold) / (levels - fewer))
    other = max((threshold - low) / more, (high - threshold) / (levels - more))
    fewer = fewer if step <= other else more
    step = min(step, other)
    return threshold - (fewer - HALF) * step, step, levels - HALF


_put, _up = compiled(_put_codes, nogil=True), compiled(_rounded_up, nogil=True)
_missed, _clip = compiled(_squared_errors, nogil=True), compiled(_clip_group, nogil=True)
_ends, _grid = compiled(_ends_of_sides, nogil=True), compiled(_grid_of_group, nogil=True)
encode, decode = compiled(_encode_loop, nogil=True), compiled(_decode_loop, nogil=True)
encode_sides = compiled(_encode_sides_loop, nogil=True)
