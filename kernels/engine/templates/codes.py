"""The kernels of codes: `actfit.kernels.engine.reference_codes` says what each computes.

Codes of 8 bits are bytes, those of fewer are bit planes. Rows, programs and planes are those of
`actfit.kernels.engine.templates.elementwise`: eight consecutive elements a row, ROWS of them a program, offsets of 64
bits, float32 until the store. They run without fused multiply-adds, so that each operation rounds as it does in the
reference. Ends of groups are integers in the order of the numbers until they are known: so NaNs count.

GROUP: elements of a group, a multiple of 8, so that a row is of one. WIDE: elements are counted in 64 bits, which are
divided slowly.
"""

import triton
import triton.language as tl

from actfit.kernels.engine.templates.planes import load_planes, load_runs, store_planes, store_planes_of_runs


@triton.jit
def encode_kernel(
    x_ptr, minimum_ptr, inverse_ptr, noise_ptr, codes_ptr, n,
    NOISE: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Codes of n elements by the minima and inverse steps of their groups.

    NOISE: each element has its own; else codes are rounded to nearest.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, 8)[None, :]
    at = row[:, None] * 8 + k
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    place = (x - of_groups(minimum_ptr, row, n, GROUP, WIDE)) * of_groups(inverse_ptr, row, n, GROUP, WIDE)
    place += tl.load(noise_ptr + at, mask=inside, other=0.0).to(tl.float32) if NOISE else 0.5
    code = tl.minimum(tl.maximum(place, 0.0), (1 << BITS) - 1.0).to(tl.int32)  # of NaN and 0, maximum is 0
    if BITS == 8:
        tl.store(codes_ptr + at, code.to(tl.uint8), mask=inside)
    else:
        store_planes(codes_ptr, tl.where(inside, code, 0), row, k, n, BITS)


@triton.jit
def group_range_kernel(
    x_ptr, minimum_ptr, scale_ptr, group_size, groups, n,
    BITS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The minimum and scale of each group of up to WIDTH elements; GROUPS a program."""
    index = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    place = tl.arange(0, WIDTH)[None, :]
    at = index[:, None] * group_size + place
    inside = (place < group_size) & (at < n)
    key = ordered(tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32).to(tl.int32, bitcast=True))
    low, high = tl.where(inside, key, 0x7FFFFFFF), tl.where(inside, key, -0x80000000)
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
    """code * scale + minimum of n elements; clamped to LARGEST, if it is not 0."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, 8)[None, :]
    at = row[:, None] * 8 + k
    if BITS == 8:
        code = tl.load(codes_ptr + at, mask=at < n, other=0)
    else:
        code = load_planes(codes_ptr, row, k, n, (n - 1) // 8 + 1, BITS)
    value = code.to(tl.float32) * of_groups(scale_ptr, row, n, GROUP, WIDE)
    value = value + of_groups(minimum_ptr, row, n, GROUP, WIDE)
    if LARGEST != 0:  # the last code may be above the largest number of the type; NaN stays
        value = tl.where(value > LARGEST, LARGEST, tl.where(value < -LARGEST, -LARGEST, value))
    tl.store(values_ptr + at, value, mask=at < n)


@triton.jit
def of_groups(vector_ptr, row, n, GROUP: tl.constexpr, WIDE: tl.constexpr):
    """The entries of a vector for the groups of some rows, [ROWS, 1]."""
    group = (row if WIDE else row.to(tl.int32)) // (GROUP // 8)
    return tl.load(vector_ptr + group, mask=row * 8 < n, other=0.0).to(tl.float32)[:, None]


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


@triton.jit
def pack_kernel(x_ptr, packed_ptr, n, ROWS: tl.constexpr):
    """A bit for each of n bytes, which are 0 or 1."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, 8)[None, :]
    at = row[:, None] * 8 + k
    store_planes(packed_ptr, tl.load(x_ptr + at, mask=at < n, other=0).to(tl.int32), row, k, n, 1)


@triton.jit
def unpack_kernel(packed_ptr, x_ptr, n, ROWS: tl.constexpr):
    """The reverse of `pack_kernel`."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, 8)[None, :]
    at = row[:, None] * 8 + k
    tl.store(x_ptr + at, load_planes(packed_ptr, row, k, n, 0, 1).to(tl.uint8), mask=at < n)
