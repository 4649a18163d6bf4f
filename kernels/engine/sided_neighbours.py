"""Codes of groups of neighbours that also tell sides of a threshold, on a CPU, in loops that Numba compiles.

As in `kernels.engine.neighbours`, the results are those of `kernels.engine.reference_codes`, bit for bit but in NaNs.
"""

from math import lcm

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coefficients.compiled import compiled
from kernels.engine.neighbours import (
    BUT_THE_SIGN,
    GATHER,
    HIGHEST,
    LOWEST,
    ONES,
    TOP_BYTE,
    Bytes,
    Floats,
    groups_of,
    in_threads,
    pieces_of,
    round_up,
)
from kernels.engine.planes import plane_bytes


def encode_sides(flat: Tensor, inside: Tensor, group_size: int, bits: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Planes, minima, scales and edges of contiguous numbers of at most 32 bits, and bools; groups of any size."""
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
            _encode_sides(part, part.view(np.int32), own, group_size, block, packed, (first + start) // 8, *ends)

        in_threads(len(x), block, run)
    return planes, minimum.bfloat16(), scale.bfloat16(), edge


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
        bottom, top, other_bottom, other_top = BUT_THE_SIGN, ~BUT_THE_SIGN, BUT_THE_SIGN, ~BUT_THE_SIGN
        for i in range(count):
            key = x_bits[begin + i] ^ ((x_bits[begin + i] >> np.int32(31)) & BUT_THE_SIGN)
            key = np.int32(0) if key == np.int32(-1) else key  # of -0, which is no less than 0
            is_inside = inside[begin + i]
            bottom, top = (
                min(bottom, key if is_inside else BUT_THE_SIGN),
                max(top, key if is_inside else ~BUT_THE_SIGN),
            )
            other_bottom = min(other_bottom, BUT_THE_SIGN if is_inside else key)
            other_top = max(other_top, ~BUT_THE_SIGN if is_inside else key)
        has_both = bottom <= top and other_bottom <= other_top
        rises = top >= other_top if has_both else inside[begin]
        least, largest = min(bottom, other_bottom), max(top, other_top)
        below, above = (other_top, bottom) if rises else (top, other_bottom)
        for end, key in enumerate((least, largest, below, above)):
            number_bits[end] = key ^ ((key >> np.int32(31)) & BUT_THE_SIGN)
        low, high, threshold = number[0], number[1], (number[2] + number[3]) / np.float32(2)
        is_finite = least > LOWEST and largest < HIGHEST and np.isfinite(high - low)
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
            start = -round_up(-start, number, number_bits)
            step = round_up(max(step, (high - start) / reach), number, number_bits)
            minimum[group], scale[group] = start, step
            inverse = unit / step if step > 0 else np.float32(0)
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
                bits = ((words[word] >> np.uint64(plane)) & ONES) * GATHER
                planes[plane, first + (begin + count - filled) // 8 + word] = bits >> TOP_BYTE


_encode_sides = compiled(_encode_sides_loop, nogil=True)
