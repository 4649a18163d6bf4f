"""The loops of `actfit.kernels.engine.neighbours`, which Numba compiles.

All in one file, as they call one another: Numba's cache of a function does not know when one in another file changes.

Groups have a multiple of 8 elements. Codes are packed and unpacked by blocks of whole groups, long enough for vector
instructions; those of 8 bits are bytes, [1, elements] here. Numba uses these in a loop over a slice, of which it knows
that no index is negative.

`encode` and `decode` take addresses: a small tensor gives its own in a tenth of the time that its array takes.
"""

from typing import Any

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray

from actfit.coefficients.compiled import compiled
from actfit.kernels.engine.codes import LEAST_STEP

Floats = NDArray[np.floating]
Bytes = NDArray[np.uint8]
Words = NDArray[np.signedinteger]  # bits of numbers: int32 of float32, int16 of bfloat16
# Elements of a group and of a block, bits, the address of codes, bytes of a plane, addresses of minima and scales.
Coded = tuple[int, int, int, int, int, int, int]

# Eight codes are one number of 64 bits, as in `actfit.kernels.engine.planes`.
ONES, GATHER, TOP_BYTE = np.uint64(0x0101010101010101), np.uint64(0x0102040810204080), np.uint64(56)
EACH, BELOW = np.uint64(0x8040201008040201), np.uint64(0x7F7F7F7F7F7F7F7F)  # a bit of each byte; all but the highest
# Bits of float32 as integers in the order of the numbers; NaNs lie beyond the infinities on either side.
BUT_THE_SIGN, LOWEST, HIGHEST = np.int32(0x7FFFFFFF), np.int32(~0x7F800000), np.int32(0x7F800000)
NAN, LOWER_HALF, UPPER = np.int32(0x7FC00000), np.int32(0xFFFF), np.int32(16)
UNIT, LEAST = np.float32(1), np.float32(LEAST_STEP)


def _encode_at(itemsize: int, x: int, noise: int, noises: int, coded: Coded, start: int, stop: int) -> None:
    """Encode numbers from `start` to `stop`, where a block begins.

    itemsize: 4, of float32, or 2, of bfloat16. x, noise: addresses. noises: as many as numbers, or 1.
    """
    group_size, block, bits = coded[:3]
    planes, low, step = _arrays(coded, start, stop)
    of_own = carray(_memory(noise), noises, np.float32)
    of_own = of_own if noises == 1 else of_own[start:stop]
    if itemsize == 4:
        own = carray(_memory(x), stop, np.int32)[start:]
        _encode(own, of_own, group_size, block, bits, planes, start // 8, low, step)
    else:
        own_halves = carray(_memory(x), stop, np.int16)[start:]
        _encode(own_halves, of_own, group_size, block, bits, planes, start // 8, low, step)


def _decode_at(itemsize: int, values: int, coded: Coded, start: int, stop: int) -> None:
    """The reverse of `_encode_at`."""
    group_size, block, bits = coded[:3]
    planes, low, step = _arrays(coded, start, stop)
    if itemsize == 4:
        made = carray(_memory(values), stop, np.int32)[start:]
        _decode(planes, bits, step, low, group_size, block, start // 8, made)
    else:
        made_halves = carray(_memory(values), stop, np.int16)[start:]
        _decode(planes, bits, step, low, group_size, block, start // 8, made_halves)


def _arrays_of(coded: Coded, start: int, stop: int) -> tuple[Bytes, Words, Words]:
    """All planes, and the minima and scales of the groups from `start` to `stop`."""
    group_size, _, bits, codes, plane, minimum, scale = coded
    first, last = start // group_size, -(-stop // group_size)
    planes = carray(_memory(codes), (1 if bits == 8 else bits, plane), np.uint8)
    low, step = carray(_memory(minimum), last, np.int16), carray(_memory(scale), last, np.int16)
    return planes, low[first:], step[first:]


def _memory_at(typing: Any, address: Any) -> Any:
    """The memory at an address, for `carray`: the type of the function, and what generates its code."""

    def made(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.inttoptr(given[0], context.get_value_type(types.voidptr))

    return types.voidptr(address), made


_memory: Any = intrinsic(_memory_at)


def _encode_loop(
    x: Words,
    noise: Floats,
    group_size: int,
    block: int,
    bits: int,
    planes: Bytes,
    first: int,
    minimum: Words,
    scale: Words,
) -> None:
    """x: the words of float32 or bfloat16. noise: for each number, or one for all.

    first: the byte of a plane where these codes begin. minimum, scale: words of bfloat16.
    """
    codes, filled = np.empty(block, np.uint8), 0
    own = np.empty(group_size, np.float32)  # of the group; compilers know that nothing else has its memory
    own_bits = own.view(np.int32)
    shift, most = np.int32(32 - 8 * x.itemsize), np.float32((1 << bits) - 1)
    number = np.empty(1, np.float32)
    number_bits = number.view(np.int32)
    for group in range(len(minimum)):
        begin = group * group_size
        given = x[begin : begin + group_size]
        low, high = BUT_THE_SIGN, ~BUT_THE_SIGN
        for i in range(len(given)):
            word = np.int32(given[i]) << shift
            own_bits[i] = word
            key = word ^ ((word >> np.int32(31)) & BUT_THE_SIGN)
            low, high = min(low, key), max(high, key)
        has_nan = low < LOWEST or high > HIGHEST
        number_bits[0] = NAN if has_nan else low ^ ((low >> np.int32(31)) & BUT_THE_SIGN)
        lowest = number[0]
        number_bits[0] = NAN if has_nan else high ^ ((high >> np.int32(31)) & BUT_THE_SIGN)
        highest = number[0]
        start = np.float32(0) - _up(-lowest, number, number_bits)  # 0, not -0, of zeros with any signs
        step = _up((highest - start) / most, number, number_bits)
        step = LEAST if step < LEAST else step
        number[0] = start
        minimum[group] = number_bits[0] >> UPPER
        number[0] = step
        scale[group] = number_bits[0] >> UPPER
        inverse = UNIT / step
        at = 8 * first + begin
        made = planes[0, at : at + len(given)] if bits == 8 else codes[filled : filled + len(given)]
        for i in range(len(given)):
            place = (own[i] - start) * inverse + (noise[0] if len(noise) == 1 else noise[begin + i])
            place = place if place > 0 else np.float32(0)  # and of NaN
            made[i] = np.int32(place if place < most else most)
        filled = (filled + len(given)) % block
        if bits < 8 and (filled == 0 or group + 1 == len(minimum)):
            held = filled or block
            _put(codes, held, planes, first + (begin + len(given) - held) // 8)


def _code_loop(x: Floats, borders: Floats, changes: Bytes, block: int, planes: Bytes, first: int) -> None:
    """changes: the code of the lowest interval, and the bits that change from one code to the next."""
    codes = np.empty(block, np.uint8)
    for begin in range(0, len(x), block):
        own = x[begin : begin + block]
        made = codes[: len(own)]
        made[:] = changes[0]
        for border, change in zip(borders, changes[1:]):  # noqa: B905 - Numba takes no `strict`
            for i in range(len(own)):
                made[i] ^= change if own[i] > border else np.uint8(0)
        _put(codes, len(own), planes, first + begin // 8)


def _put_codes(codes: Bytes, filled: int, planes: Bytes, first: int) -> None:
    """Write the first `filled` codes into planes, from byte `first` on; bits of the last byte beyond them are 0."""
    codes[filled:] = 0
    words = codes[: (filled + 7) // 8 * 8].view(np.uint64)
    for plane in range(len(planes)):
        row = planes[plane, first : first + len(words)]
        for word in range(len(words)):
            row[word] = (((words[word] >> np.uint64(plane)) & ONES) * GATHER) >> TOP_BYTE


def _rounded_up(value: Any, number: Floats, number_bits: NDArray[np.int32]) -> Any:
    """The value rounded up to bfloat16, which has the upper half of its bits; `number` has room for one."""
    number[0] = value
    if value > 0:
        number_bits[0] += LOWER_HALF
    number_bits[0] &= ~LOWER_HALF
    return number[0]


def _decode_loop(
    planes: Bytes, bits: int, scale: Words, minimum: Words, group_size: int, block: int, first: int, values: Words
) -> None:
    """As `_encode_loop`; values: words of float32 or bfloat16, to which numbers are rounded to the nearest."""
    codes, own, ends = np.empty(block, np.uint8), np.empty(group_size, np.float32), np.empty(2, np.float32)
    own_bits, ends_bits = own.view(np.int32), ends.view(np.int32)
    shift = np.int32(32 - 8 * values.itemsize)
    below_half = np.int32(0x7FFF) if shift else np.int32(0)
    for start in range(0, len(values), block):
        held = min(block, len(values) - start)
        at = first + start // 8
        if bits == 8:
            taken = planes[0, 8 * at : 8 * at + held]
        else:
            _take(planes, at, codes, held)
            taken = codes[:held]
        for begin in range(0, held, group_size):
            group = (start + begin) // group_size
            ends_bits[0], ends_bits[1] = np.int32(scale[group]) << UPPER, np.int32(minimum[group]) << UPPER
            step, least = ends[0], ends[1]
            part = taken[begin : min(begin + group_size, held)]
            made = values[start + begin : start + begin + len(part)]
            for i in range(len(part)):
                own[i] = np.float32(part[i]) * step + least
            for i in range(len(part)):
                tie = (own_bits[i] >> shift) & np.int32(1) if shift else np.int32(0)  # half way: to the even one
                made[i] = (own_bits[i] + below_half + tie) >> shift


def _take_codes(planes: Bytes, first: int, codes: Bytes, held: int) -> None:
    """The reverse of `_put_codes`."""
    words = codes[: (held + 7) // 8 * 8].view(np.uint64)
    words[:] = 0
    for plane in range(len(planes)):
        row = planes[plane, first : first + len(words)]
        for word in range(len(words)):
            bits = (np.uint64(row[word]) * ONES) & EACH  # byte i has at most bit i
            words[word] |= (((bits + BELOW) >> np.uint64(7)) & ONES) << np.uint64(plane)


_put, _take = compiled(_put_codes, nogil=True), compiled(_take_codes, nogil=True)
_up = compiled(_rounded_up, nogil=True)
_encode, _decode = compiled(_encode_loop, nogil=True), compiled(_decode_loop, nogil=True)
_arrays = compiled(_arrays_of, nogil=True)
encode, decode = compiled(_encode_at, nogil=True), compiled(_decode_at, nogil=True)
put_table_codes = compiled(_code_loop, nogil=True)
