"""Codes of groups of neighbours that also tell sides of a threshold, on a CPU, in loops that Numba compiles.

As in `kernels.engine.neighbours`, the results are those of `kernels.engine.reference_codes`, bit for bit but in NaNs:
there it is `sides_of_groups`.
"""

from math import lcm

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coefficients.compiled import compiled
from kernels.engine.neighbours import (
    BUT_THE_SIGN,
    HIGHEST,
    LOWEST,
    Bytes,
    Floats,
    groups_of,
    in_threads,
    pieces_of,
    put_words,
    round_up,
)
from kernels.engine.planes import plane_bytes

Bools = NDArray[np.bool_]

_UNIT, _HALF = np.float32(1), np.float32(0.5)


def encode_sides(flat: Tensor, inside: Tensor, group_size: int, bits: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Planes, minima, scales and edges of contiguous numbers of at most 32 bits, and bools."""
    count = len(flat)
    planes, groups = flat.new_empty((bits, plane_bytes(count)), dtype=torch.uint8), -(-count // group_size)
    minimum, scale = (flat.new_empty(groups, dtype=torch.float32) for _ in range(2))
    edge = flat.new_empty(groups, dtype=torch.uint8)
    packed, sides = planes.numpy(), inside.numpy()
    starts, steps, edges = minimum.numpy(), scale.numpy(), edge.numpy()
    block = lcm(group_size, 8)  # whole groups in whole bytes
    for piece in pieces_of(count, block, flat.dtype == torch.float32):
        x = flat[piece].detach().float().numpy()

        def run(start: int, stop: int, x: Floats = x, first: int = piece.start) -> None:
            of_groups = groups_of(first + start, first + stop, group_size)
            ends = starts[of_groups], steps[of_groups], edges[of_groups]
            own = sides[first + start : first + stop]
            part = x[start:stop]
            _encode_sides(part, part.view(np.int32), own, group_size, packed, (first + start) // 8, *ends)

        in_threads(len(x), block, run)
    return planes, minimum.bfloat16(), scale.bfloat16(), edge


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
    group_size = max(group_size, 1)  # as in `kernels.engine.neighbours`
    codes = np.zeros((group_size + 7) // 8 * 8, np.uint8)
    words, levels = codes.view(np.uint64), np.float32(1 << len(planes))
    most = levels - _UNIT
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
            start = -round_up(-start, number, number_bits)
            step = round_up(max(step, (high - start) / reach), number, number_bits)
            inverse = _UNIT / step if step > 0 else np.float32(0)
            if has_both:
                edge = np.floor((threshold - start) * inverse + _UNIT)
                edge = min(edge if edge > _UNIT else _UNIT, most)  # 1 of NaN
        elif has_both:
            rises, edge = True, _UNIT
        minimum[group], scale[group], edges[group] = start, step if rises else -step, np.uint8(edge)
        lower, upper = (edge, most) if rises or not has_both else (np.float32(0), edge - _UNIT)
        other_lower, other_upper = (np.float32(0), edge - _UNIT) if rises and has_both else (edge, most)
        for i in range(count):
            least_code, most_code = (lower, upper) if sides[i] else (other_lower, other_upper)
            place = np.floor((own[i] - start) * inverse + _HALF)
            place = place if place > least_code else least_code  # and of NaN
            codes[i] = np.int32(min(place, most_code))
        put_words(words, count, planes, first, begin, len(x))


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
        return low, np.float32(0), levels - _UNIT
    share = levels * ((threshold - low) / (high - low))
    fewer = min(max(np.floor(share), _UNIT), levels - _UNIT)
    more = min(max(np.ceil(share), _UNIT), levels - _UNIT)
    step = max((threshold - low) / fewer, (high - threshold) / (levels - fewer))
    other = max((threshold - low) / more, (high - threshold) / (levels - more))
    fewer = fewer if step <= other else more
    step = min(step, other)
    return threshold - (fewer - _HALF) * step, step, levels - _HALF


_ends, _grid = compiled(_ends_of_sides, nogil=True), compiled(_grid_of_group, nogil=True)
_encode_sides = compiled(_encode_sides_loop, nogil=True)
