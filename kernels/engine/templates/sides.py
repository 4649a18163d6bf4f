"""The kernels of codes that tell sides: `kernels.engine.reference_sides` says what they compute, and in which order.

They run without fused multiply-adds, so that each operation rounds as it does there. One lays the grid of each group,
the other encodes the elements on it.
"""

import triton
import triton.language as tl

from kernels.engine.templates.codes import entries
from kernels.engine.templates.groups import upper
from kernels.engine.templates.planes import store_planes


@triton.jit
def side_grids_kernel(
    x_ptr, inside_ptr, minimum_ptr, scale_ptr, inverse_ptr, edge_ptr, group_size, groups, n,
    LEVELS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Minimum, scale with its sign, 1 / |scale| and edge of each group; GROUPS a program, of at most WIDTH elements."""
    index = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    place = tl.arange(0, WIDTH)[None, :]
    at = index[:, None] * group_size + place
    is_there = (place < group_size) & (at < n)
    x = tl.load(x_ptr + at, mask=is_there, other=0.0).to(tl.float32) + 0.0  # 0 for -0
    inside = tl.load(inside_ptr + at, mask=is_there, other=0) != 0
    own, others = is_there & inside, is_there & (inside == 0)
    low, high = lowest(x, is_there), highest(x, is_there)
    top, other_top = highest(x, own), highest(x, others)
    bottom, other_bottom = lowest(x, own), lowest(x, others)
    has_own, has_others = tl.max(own.to(tl.int32), axis=1) != 0, tl.max(others.to(tl.int32), axis=1) != 0
    has_nan = tl.max((is_there & (x != x)).to(tl.int32), axis=1) != 0
    has_both, finite = has_own & has_others, (tl.abs(high - low) < float("inf")) & (has_nan == 0)
    # The first of a group with one side only is on that side.
    rises = tl.where(has_both, ((top < other_top) & finite) == 0, has_own)
    threshold = (tl.where(rises, other_top, top) + tl.where(rises, bottom, other_bottom)) * 0.5
    divided = (high > low) & (tl.abs(threshold) < float("inf"))
    share = LEVELS * tl.div_rn(threshold - low, high - low)
    fewer = tl.minimum(tl.maximum(tl.floor(share), 1.0), LEVELS - 1.0)
    more = tl.minimum(tl.maximum(tl.ceil(share), 1.0), LEVELS - 1.0)
    least = tl.maximum(tl.div_rn(threshold - low, fewer), tl.div_rn(high - threshold, LEVELS - fewer))
    other = tl.maximum(tl.div_rn(threshold - low, more), tl.div_rn(high - threshold, LEVELS - more))
    below = tl.where(least <= other, fewer, more)
    scale = tl.minimum(least, other)
    start = tl.where(divided, threshold - (below - 0.5) * scale, low)
    minimum = 0.0 - upper(0.0 - start)
    reach = high - minimum
    scale = tl.where(divided, tl.maximum(scale, tl.div_rn(reach, LEVELS - 0.5)), tl.div_rn(reach, LEVELS - 1.0))
    minimum = tl.where(finite, minimum, float("nan"))
    scale = tl.where(finite, upper(scale), float("inf"))
    inverse = tl.where(scale > 0, tl.div_rn(1.0, scale), 0.0)
    edge = tl.floor((threshold - minimum) * inverse + 1.0)
    edge = tl.where(has_both, tl.minimum(tl.maximum(edge, 1.0), LEVELS - 1.0), 0.0)  # of NaN and 1, maximum is 1
    tl.store(minimum_ptr + index, minimum.to(tl.bfloat16), mask=index < groups)
    signed = tl.where(rises, scale, scale * -1.0)  # -scale would be 0 - scale, without a sign at 0
    tl.store(scale_ptr + index, signed.to(tl.bfloat16), mask=index < groups)
    tl.store(inverse_ptr + index, inverse, mask=index < groups)
    tl.store(edge_ptr + index, edge.to(tl.uint8), mask=index < groups)


@triton.jit
def side_codes_kernel(
    x_ptr, inside_ptr, minimum_ptr, scale_ptr, inverse_ptr, edge_ptr, planes_ptr, group_size, groups, n,
    PLACES: tl.constexpr, BITS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Bit planes of the codes; PLACES as in `kernels.engine.templates.codes`, for elements in a row."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, 8)[None, :]
    at = row[:, None] * 8 + k
    is_there = at < n
    x = tl.load(x_ptr + at, mask=is_there, other=0.0).to(tl.float32)
    inside = tl.load(inside_ptr + at, mask=is_there, other=0) != 0
    start = entries(minimum_ptr, row, k, group_size, 1, n, groups, PLACES, WIDE)
    inverse = entries(inverse_ptr, row, k, group_size, 1, n, groups, PLACES, WIDE)
    edge = entries(edge_ptr, row, k, group_size, 1, n, groups, PLACES, WIDE)
    signed = entries(scale_ptr, row, k, group_size, 1, n, groups, PLACES, WIDE)
    rises = signed.to(tl.int32, bitcast=True) >= 0
    code = tl.minimum(tl.maximum(tl.floor((x - start) * inverse + 0.5), 0.0), (1 << BITS) - 1.0)  # 0 of NaN
    above = (inside == rises) | (edge == 0)
    code = tl.where(above, tl.maximum(code, edge), tl.minimum(code, edge - 1.0))
    store_planes(planes_ptr, tl.where(is_there, code, 0.0).to(tl.int32), row, k, n, BITS)


@triton.jit
def lowest(x, of):
    """The least of each row of x where `of`, but for NaNs; infinity of none."""
    return tl.min(tl.where(of & (x == x), x, float("inf")), axis=1)


@triton.jit
def highest(x, of):
    """The largest of each row of x where `of`, but for NaNs; minus infinity of none."""
    return tl.max(tl.where(of & (x == x), x, float("-inf")), axis=1)
