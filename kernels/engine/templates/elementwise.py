"""The element-wise kernels, written once for all functions and methods: forward and backward.

FORWARD, ENCODE and DECODE are functions of one element, from `actfit.kernels.generated`. STORAGE says what backward
reads, see `actfit.kernels.methods.storage`:

    derivative      f'(x) itself: ENCODE(x)
    output          y alone: f' is DECODE(y)
    branch_bit      y, and packed the branch of x, ENCODE(x, k), one bit: f' is DECODE(y, bit)
    branch_and_rounding   y, and packed the branch and whether y was rounded away from zero: f' is DECODE(z, bit), where
                    z = y ± a quarter of its spacing, see `finer`; at the output CUT[0] both are others
    codes           packed codes, ENCODE(x, k), of BITS bits: f' is DECODE(code)
    table_codes     packed codes by a table in memory: borders, codes, levels
    marked_output   y, whose lowest bit is 1 on the left branch: f' is DECODE(y, bit)
    signed_output   ±(y - MINIMUM), plus on the right branch: f' is DECODE(y, bit)

Eight consecutive elements make a row; a program does ROWS of them. Codes are stored as bit planes: byte `row` of
plane p holds bit p of the row's codes, the first element's lowest. A plane has ceil(n/8) bytes; unused bits of
the last one are undefined. Offsets have 64 bits. Kernels compute in float32 and round once, in the store.

The fused pair is for functions that users write: ELEMENT, emitted at their first call, returns all results of one
element and then their derivatives, which backward reads; pointers come in tuples.
"""

import triton
import triton.language as tl

from actfit.kernels.engine.templates.planes import load_planes, store_planes


@triton.jit
def forward_kernel(
    x_ptr, y_ptr, saved_ptr, table_ptr, parameters, n,
    FORWARD: tl.constexpr, ENCODE: tl.constexpr, STORAGE: tl.constexpr, MINIMUM: tl.constexpr, CUT: tl.constexpr,
    BITS: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """y = f(x), and what backward needs, for n elements."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, 8)[None, :]
    at = row[:, None] * 8 + k
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    y = FORWARD(x, parameters)
    if STORAGE == "derivative":
        tl.store(saved_ptr + at, ENCODE(x, parameters), mask=inside)
    if STORAGE == "branch_bit" or STORAGE == "codes":
        word = tl.sum(ENCODE(x, parameters, k), axis=1)  # bit p of the row's k-th code at 8p + k: byte p is plane p's
    if STORAGE == "branch_and_rounding":
        away = minus_where_less(y, border_of(y.to(y_ptr.dtype.element_ty).to(tl.float32), CUT))
        word = tl.sum(ENCODE(x, parameters, k) | (away & (256 << k)), axis=1)
    if STORAGE == "branch_bit" or STORAGE == "codes" or STORAGE == "branch_and_rounding":
        for plane in tl.static_range(BITS):
            byte = (word >> (8 * plane)).to(tl.uint8)
            tl.store(saved_ptr + plane * ((n - 1) // 8 + 1) + row, byte, mask=row * 8 < n)
    if STORAGE == "table_codes":
        store_planes(saved_ptr, find(x, table_ptr, STEPS), row, k, n, BITS)
    if STORAGE == "marked_output":
        y = with_lowest_bit(y.to(y_ptr.dtype.element_ty), ENCODE(x, parameters, 0) == 0)
    if STORAGE == "signed_output":
        above = tl.maximum(y - MINIMUM, 0.0, propagate_nan=tl.PropagateNan.ALL)
        below = above * -1.0  # -above would be 0 - above, without a sign at 0
        tl.store(saved_ptr + at, tl.where(ENCODE(x, parameters, 0) != 0, above, below), mask=inside)
    tl.store(y_ptr + at, y, mask=inside)


@triton.jit
def backward_kernel(
    grad_ptr, y_ptr, saved_ptr, table_ptr, dx_ptr, parameters, n,
    DECODE: tl.constexpr, STORAGE: tl.constexpr, MINIMUM: tl.constexpr, CUT: tl.constexpr,
    BITS: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dx = grad * f'(x), f'(x) from what forward left, for n elements."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, 8)[None, :]
    at = row[:, None] * 8 + k
    inside = at < n
    if STORAGE == "derivative":
        derivative = tl.load(saved_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if STORAGE == "output":
        derivative = DECODE(tl.load(y_ptr + at, mask=inside, other=0.0).to(tl.float32), parameters)
    if STORAGE == "branch_bit":
        byte = tl.load(saved_ptr + row, mask=row * 8 < n, other=0).to(tl.int32)
        y = tl.load(y_ptr + at, mask=inside, other=0.0).to(tl.float32)
        derivative = DECODE(y, ((byte[:, None] >> k) & 1) != 0, parameters)
    if STORAGE == "codes" or STORAGE == "branch_and_rounding":
        word = tl.zeros([ROWS], dtype=tl.int32)
        for plane in tl.static_range(BITS):
            byte = tl.load(saved_ptr + plane * ((n - 1) // 8 + 1) + row, mask=row * 8 < n, other=0)
            word = word | (byte.to(tl.int32) << (8 * plane))
    if STORAGE == "codes":
        derivative = DECODE(word[:, None] >> k)
    if STORAGE == "branch_and_rounding":
        bits = word[:, None] >> k
        y = finer(tl.load(y_ptr + at, mask=inside, other=0.0), (bits & 256) != 0, CUT)
        derivative = DECODE(y, (bits & 1) != 0, parameters)
    if STORAGE == "table_codes":
        derivative = tl.load(table_ptr + (2 << STEPS) + load_planes(saved_ptr, row, k, n, (n - 1) // 8 + 1, BITS))
    if STORAGE == "marked_output":
        y = tl.load(y_ptr + at, mask=inside, other=0.0)
        derivative = DECODE(y.to(tl.float32), lowest_bit(y) == 0, parameters)
    if STORAGE == "signed_output":
        above = tl.load(saved_ptr + at, mask=inside, other=0.0)
        derivative = DECODE(tl.abs(above.to(tl.float32)) + MINIMUM, sign_bit(above) == 0, parameters)
    grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(dx_ptr + at, grad * derivative, mask=inside)


@triton.jit
def levels_kernel(
    saved_ptr, table_ptr, values_ptr, n, BITS: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """The levels of n codes of a table in memory."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, 8)[None, :]
    at = row[:, None] * 8 + k
    level = tl.load(table_ptr + (2 << STEPS) + load_planes(saved_ptr, row, k, n, (n - 1) // 8 + 1, BITS))
    tl.store(values_ptr + at, level, mask=at < n)


@triton.jit
def gated_kernel(
    a_ptr, b_ptr, h_ptr, parameters, n, FORWARD: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """h = f(a) * b, for n elements; backward is left with a and b."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * 8 + tl.arange(0, 8)[None, :]
    inside = at < n
    a = tl.load(a_ptr + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(h_ptr + at, FORWARD(a, parameters) * b, mask=inside)


@triton.jit
def gated_backward_kernel(
    grad_ptr, a_ptr, b_ptr, da_ptr, db_ptr, parameters, n,
    FORWARD: tl.constexpr, DERIVATIVE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """da = grad * b * f'(a) and db = grad * f(a), for n elements."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * 8 + tl.arange(0, 8)[None, :]
    inside = at < n
    grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32)
    a = tl.load(a_ptr + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(da_ptr + at, grad * b * DERIVATIVE(a, parameters), mask=inside)
    tl.store(db_ptr + at, grad * FORWARD(a, parameters), mask=inside)


@triton.jit
def fused_forward_kernel(
    x_ptr, result_ptrs, n, ELEMENT: tl.constexpr, COUNT: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """The first COUNT of what ELEMENT(x) gives, of n elements; what is not asked for is not computed."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * 8 + tl.arange(0, 8)[None, :]
    inside = at < n
    results = ELEMENT(tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32))
    for i in tl.static_range(COUNT):
        tl.store(result_ptrs[i] + at, results[i], mask=inside)


@triton.jit
def fused_backward_kernel(
    grad_ptrs, derivative_ptrs, dx_ptr, n, COUNT: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """dx = the sum of COUNT products grad * derivative, for n elements."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * 8 + tl.arange(0, 8)[None, :]
    inside = at < n
    dx = tl.zeros([ROWS, 8], dtype=tl.float32)
    for i in tl.static_range(COUNT):
        grad = tl.load(grad_ptrs[i] + at, mask=inside, other=0.0).to(tl.float32)
        dx += grad * tl.load(derivative_ptrs[i] + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(dx_ptr + at, dx, mask=inside)


@triton.jit
def find(x, table_ptr, STEPS: tl.constexpr):
    """The code of x: 2**STEPS borders, the last infinite, then the codes of the intervals, which are closed above."""
    at = tl.zeros(x.shape, dtype=tl.int32)
    for step in tl.static_range(STEPS):
        half = 1 << (STEPS - 1 - step)
        at = tl.where(x > tl.load(table_ptr + at + half - 1), at + half, at)
    return tl.load(table_ptr + (1 << STEPS) + at).to(tl.int32)


@triton.jit
def bits_of(value):
    """The bits of a floating-point number."""
    if value.dtype == tl.float32:
        bits = value.to(tl.int32, bitcast=True)
    else:
        bits = value.to(tl.int16, bitcast=True)
    return bits


@triton.jit
def minus_where_less(value, other):
    """-1 where |value| < |other|, else 0, for numbers of one sign."""
    return (bits_of(value) - bits_of(other)) >> 31


@triton.jit
def border_of(y, CUT: tl.constexpr):
    """Where the numbers that are rounded to y are cut in two: at y, but for one."""
    if CUT is not None:
        y = tl.where(y == CUT[0], CUT[1], y)
    return y


@triton.jit
def finer(y, away, CUT: tl.constexpr):
    """The midpoint of the numbers that are rounded to y, of 16 bits, from one side: y in float32 with a quarter of its
    spacing taken off where it was rounded away from zero, else added; for the output CUT[0] it is CUT[2] or CUT[3]."""
    share: tl.constexpr = 2.0**-9 if y.dtype == tl.bfloat16 else 2.0**-12
    y = y.to(tl.float32)
    power = (bits_of(y) & -0x800000).to(tl.float32, bitcast=True)  # sign and exponent
    z = tl.fma(power, tl.where(away, -share, share), y)
    if CUT is not None:
        z = tl.where(y == CUT[0], tl.where(away, CUT[2], CUT[3]), z)
    return z


@triton.jit
def lowest_bit(value):
    """The lowest bit of the mantissa."""
    return bits_of(value) & 1


@triton.jit
def sign_bit(value):
    """Not 0 where the sign is minus, that of zero too."""
    return (bits_of(value) < 0).to(tl.int32)


@triton.jit
def with_lowest_bit(value, bit):
    """`value` with its lowest bit set or not."""
    bits = bits_of(value)
    return tl.where(bit, bits | 1, bits & ~1).to(value.dtype, bitcast=True)
