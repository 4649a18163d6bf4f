"""The kernels of K-bit codes: `actfit.kernels.engine.reference_codes` says what each computes.

Those that find the ranges of groups are in `actfit.kernels.engine.templates.groups`.

Rows, programs and bit planes are those of `actfit.kernels.engine.templates.elementwise`: eight consecutive elements a
row, ROWS of them a program, offsets of 64 bits, float32 until the store. They run without fused multiply-adds, so
that each operation rounds as it does in the reference.

Codes of 8 bits are bytes, those of fewer are bit planes.

Element i has entry (i // group_size) % length of a vector. PLACES says where the entries of a row's elements are, so
that integers are divided once a row if possible:

    one     the vector has one entry
    row     group_size is a multiple of 8: a row has one entry
    two     group_size is not below 8: a row has one entry or two in a row
    eight   group_size is 1 and 8 divides the length: a row has eight in a row
    each    else
"""

import triton
import triton.language as tl

from actfit.kernels.engine.templates.planes import load_planes, store_planes


@triton.jit
def encode_kernel(
    x_ptr, center_ptr, inverse_scale_ptr, offset_ptr, noise_ptr, codes_ptr, group_size, length, n,
    PLACES: tl.constexpr, NOISE: tl.constexpr, BITS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Codes of n elements. NOISE: "none", "one" for all or "each" its own."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, 8)[None, :]
    at = row[:, None] * 8 + k
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    place = x - entries(center_ptr, row, k, group_size, length, PLACES, WIDE)
    place = place * entries(inverse_scale_ptr, row, k, group_size, length, PLACES, WIDE)
    if NOISE == "one":
        place += tl.load(noise_ptr).to(tl.float32)
    if NOISE == "each":
        place += tl.load(noise_ptr + at, mask=inside, other=0.0).to(tl.float32)
    code = tl.floor(place) + entries(offset_ptr, row, k, group_size, length, PLACES, WIDE)
    code = tl.minimum(tl.maximum(code, 0.0), (1 << BITS) - 1.0)  # of NaN and a number, maximum is the number
    if BITS == 8:
        tl.store(codes_ptr + at, code.to(tl.int32).to(tl.uint8), mask=inside)
    else:
        store_planes(codes_ptr, code.to(tl.int32), row, k, n, BITS)


@triton.jit
def decode_kernel(
    codes_ptr, scale_ptr, minimum_ptr, values_ptr, group_size, length, distance, n,
    PLACES: tl.constexpr, BITS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """code * scale + minimum of n elements. distance: bytes from one plane of codes to the next."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, 8)[None, :]
    at = row[:, None] * 8 + k
    value = load_codes(codes_ptr, row, k, n, distance, BITS).to(tl.float32)
    value = value * entries(scale_ptr, row, k, group_size, length, PLACES, WIDE)
    value = value + entries(minimum_ptr, row, k, group_size, length, PLACES, WIDE)
    tl.store(values_ptr + at, value, mask=at < n)


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


@triton.jit
def load_codes(codes_ptr, row, k, n, distance, BITS: tl.constexpr):
    """The codes of some rows, [ROWS, 8]; `distance` as in `decode_kernel`."""
    if BITS == 8:
        at = row[:, None] * 8 + k
        code = tl.load(codes_ptr + at, mask=at < n, other=0)
    else:
        code = load_planes(codes_ptr, row, k, n, distance, BITS)
    return code


@triton.jit
def entries(vector_ptr, row, k, group_size, length, PLACES: tl.constexpr, WIDE: tl.constexpr):
    """The entries of a vector for the rows' elements, [ROWS, 8]; rows past the end have arbitrary entries.

    WIDE: elements are counted in 64 bits, which are divided slowly.
    """
    first = row[:, None] * 8
    if not WIDE:
        first = first.to(tl.int32)
    if PLACES == "one":
        values = tl.load(vector_ptr)
    elif PLACES == "row":
        values = tl.load(vector_ptr + first // group_size % length)
    elif PLACES == "two":
        whole = first // group_size
        current = whole % length
        following = tl.where(current + 1 == length, 0, current + 1)
        in_the_next = first - whole * group_size + k >= group_size
        values = tl.where(in_the_next, tl.load(vector_ptr + following), tl.load(vector_ptr + current))
    elif PLACES == "eight":
        values = tl.load(vector_ptr + (first % length + k))
    else:
        values = tl.load(vector_ptr + (first + k) // group_size % length)
    return values.to(tl.float32)
