"""The kernels that find ranges of groups, as `actfit.kernels.engine.reference_codes` does; one encodes neighbours.

Ends are integers in the order of the numbers until they are known: so NaNs count. They run without fused
multiply-adds, so that each operation rounds as it does in the reference.
"""

import triton
import triton.language as tl

from actfit.kernels.engine.templates.codes import load_codes
from actfit.kernels.engine.templates.runs import load_runs, store_planes_of_runs


@triton.jit
def group_range_kernel(
    x_ptr, minimum_ptr, scale_ptr, group_size, groups, n,
    BITS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The minimum and scale of each group; GROUPS a program, WIDTH elements at a time."""
    index = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    low = tl.full([GROUPS, WIDTH], 0x7FFFFFFF, dtype=tl.int32)
    high = tl.full([GROUPS, WIDTH], -0x80000000, dtype=tl.int32)
    for start in range(0, group_size, WIDTH):
        place = start + tl.arange(0, WIDTH)[None, :]
        at = index[:, None] * group_size + place
        inside = (place < group_size) & (at < n)
        key = ordered(tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32).to(tl.int32, bitcast=True))
        low = tl.minimum(low, tl.where(inside, key, 0x7FFFFFFF))
        high = tl.maximum(high, tl.where(inside, key, -0x80000000))
    lowest, highest = ends_of(tl.min(low, axis=1), tl.max(high, axis=1))
    minimum, scale = range_of(lowest, highest, BITS)
    tl.store(minimum_ptr + index, minimum.to(tl.bfloat16), mask=index < groups)
    tl.store(scale_ptr + index, scale.to(tl.bfloat16), mask=index < groups)


@triton.jit
def encode_groups_kernel(
    x_ptr, noise_ptr, minimum_ptr, scale_ptr, codes_ptr, n,
    NOISE: tl.constexpr, WHOLE: tl.constexpr,
    BITS: tl.constexpr, GROUP: tl.constexpr, RUN: tl.constexpr, RUNS: tl.constexpr,
):  # fmt: skip
    """Minima, scales and codes of groups of GROUP neighbours, a power of 2 from RUN to RUN * RUNS.

    NOISE: each element has its own; else codes are rounded to nearest. WHOLE: RUN divides n.
    """
    run = tl.program_id(0).to(tl.int64) * RUNS + tl.arange(0, RUNS)
    is_there = run * RUN < n
    inside = is_there[:, None] if WHOLE else run[:, None] * RUN + tl.arange(0, RUN)[None, :] < n
    x = load_runs(x_ptr, run, n, WHOLE, RUN)
    width: tl.constexpr = GROUP // RUN  # runs of a group
    many: tl.constexpr = RUNS // width
    low, high = ordered_ends(x, is_there, inside, WHOLE)
    low = tl.min(tl.reshape(low, [many, width]), axis=1)
    high = tl.max(tl.reshape(high, [many, width]), axis=1)
    lowest, highest = ends_of(low, high)
    minimum, scale = range_of(lowest, highest, BITS)
    inverse = tl.div_rn(1.0, scale)
    start, step = of_runs(minimum, many, width), of_runs(scale, many, width)
    # By the first run of each group: a vector of groups would be exchanged between threads.
    is_first = is_there & (run % width == 0)
    tl.store(minimum_ptr + run // width, tl.reshape(start, [RUNS]).to(tl.bfloat16), mask=is_first)
    tl.store(scale_ptr + run // width, tl.reshape(step, [RUNS]).to(tl.bfloat16), mask=is_first)
    place = (x - start) * of_runs(inverse, many, width)
    place += load_runs(noise_ptr, run, n, WHOLE, RUN) if NOISE else 0.5
    code = tl.minimum(tl.maximum(place, 0.0), (1 << BITS) - 1.0).to(tl.int32)  # of NaN and 0, maximum is 0
    if BITS == 8:
        at = run[:, None] * RUN + tl.arange(0, RUN)[None, :]
        tl.store(codes_ptr + at, code.to(tl.uint8), mask=inside)
    else:
        store_planes_of_runs(codes_ptr, code if WHOLE else tl.where(inside, code, 0), run, n, WHOLE, BITS, RUN)


@triton.jit
def decode_groups_kernel(
    codes_ptr, minimum_ptr, scale_ptr, values_ptr, n,
    BITS: tl.constexpr, GROUP: tl.constexpr, LARGEST: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """code * scale + minimum of n neighbours in groups of GROUP, a multiple of 8; clamped to LARGEST, if it is not 0.

    A row is eight elements, ROWS of them a program. WIDE: elements are counted in 64 bits, which are divided slowly.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, 8)[None, :]
    at = row[:, None] * 8 + k
    first = row if WIDE else row.to(tl.int32)
    group = first // (GROUP // 8)
    is_there = row * 8 < n
    minimum = tl.load(minimum_ptr + group, mask=is_there, other=0.0).to(tl.float32)
    scale = tl.load(scale_ptr + group, mask=is_there, other=0.0).to(tl.float32)
    code = load_codes(codes_ptr, row, k, n, (n + 7) // 8, BITS).to(tl.float32)
    value = code * scale[:, None] + minimum[:, None]
    if LARGEST != 0:  # the last code may be above the largest number of the type; NaN stays
        value = tl.where(value > LARGEST, LARGEST, tl.where(value < -LARGEST, -LARGEST, value))
    tl.store(values_ptr + at, value, mask=at < n)


@triton.jit
def ordered_ends(x, is_there, inside, WHOLE: tl.constexpr):
    """The least and the largest of each run as `ordered` integers; `inside`: of each element, if not WHOLE."""
    if WHOLE:  # numbers are compared in one instruction, `ordered` takes two more
        nan = tl.max((x != x).to(tl.int32), axis=1) != 0
        low = ordered(tl.min(x, axis=1).to(tl.int32, bitcast=True))
        high = ordered(tl.max(x, axis=1).to(tl.int32, bitcast=True))
        low = tl.where(is_there, tl.where(nan, -0x80000000, low), 0x7FFFFFFF)
        high = tl.where(is_there, high, -0x80000000)
    else:
        key = ordered(x.to(tl.int32, bitcast=True))
        low = tl.min(tl.where(inside, key, 0x7FFFFFFF), axis=1)
        high = tl.max(tl.where(inside, key, -0x80000000), axis=1)
    return low, high


@triton.jit
def ends_of(lowest, highest):
    """The ends of groups from `ordered` integers, among which NaNs lie beyond the infinities."""
    nan = (lowest < ~0x7F800000) | (highest > 0x7F800000)
    lowest = tl.where(nan, 0x7FC00000, ordered(lowest)).to(tl.float32, bitcast=True)
    highest = tl.where(nan, 0x7FC00000, ordered(highest)).to(tl.float32, bitcast=True)
    return lowest, highest


@triton.jit
def range_of(lowest, highest, BITS: tl.constexpr):
    """Minima and scales of groups from their ends."""
    minimum = 0.0 - upper(-lowest)
    scale = upper(tl.div_rn(highest - minimum, (1 << BITS) - 1.0))
    least: tl.constexpr = 1.1754943508222875e-38  # 2^-126, LEAST_STEP of engine/codes.py
    return minimum, tl.where(scale < least, least, scale)


@triton.jit
def ordered(bits):
    """A float32's bits as an integer with the order of the numbers; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def upper(value):
    """The value rounded up to bfloat16, in float32; a NaN of bfloat16 stays."""
    bits = value.to(tl.int32, bitcast=True)
    return (tl.where(value > 0, bits + 0xFFFF, bits) & ~0xFFFF).to(tl.float32, bitcast=True)


@triton.jit
def of_runs(vector, many: tl.constexpr, width: tl.constexpr):
    """The entry of each run, [many * width, 1], of a vector with an entry for each `width` runs."""
    return tl.reshape(tl.broadcast_to(vector[:, None], [many, width]), [many * width])[:, None]
