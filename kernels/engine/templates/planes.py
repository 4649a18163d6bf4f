"""Bit planes in Triton kernels, as `actfit.kernels.engine.planes` has them in PyTorch."""

import triton
import triton.language as tl


@triton.jit
def store_planes(planes_ptr, code, row, k, n, BITS: tl.constexpr):
    """Pack codes below 2**BITS, [ROWS, 8]."""
    for plane in tl.static_range(BITS):
        if plane % 4 == 0:
            word = packed(code, k, plane, BITS)
        byte = (word >> (8 * (plane % 4))).to(tl.uint8)
        tl.store(planes_ptr + plane * ((n - 1) // 8 + 1) + row, byte, mask=row * 8 < n)


@triton.jit
def packed(code, k, plane: tl.constexpr, BITS: tl.constexpr):
    """Words of four planes from `plane` on: bit p of a row's k-th code at 8p + k; a row is eight on the last axis."""
    if BITS == 1:
        spread = code
    else:
        four = code if BITS <= 4 else (code >> plane) & 15
        spread = (four * 0x204081) & 0x01010101  # four copies, 7 bits apart: bit p at 8p
    return tl.sum(spread << k, axis=len(code.shape) - 1)


@triton.jit
def load_planes(planes_ptr, row, k, n, distance, BITS: tl.constexpr):
    """The codes that `store_planes` packed, int32 [ROWS, 8], from planes that are `distance` bytes apart."""
    far = tl.cast(distance, tl.int64)  # as 32 bits do not hold that of the last plane of a large tensor
    for plane in tl.static_range(BITS):
        byte = tl.load(planes_ptr + plane * far + row, mask=row * 8 < n, other=0).to(tl.int32)
        if plane % 4 == 0:
            word = byte
        else:
            word = word | (byte << (8 * (plane % 4)))
        if plane % 4 == 3 or plane == BITS - 1:
            bits = (word[:, None] >> k) & 0x01010101
            if plane % 4 != 0:
                # Bit 8p goes to 24 + p; other products go elsewhere below 24, or beyond 32 bits, and are not computed.
                bits = (bits.to(tl.int64) * 0x01020408).to(tl.int32) >> 24
            if plane < 4:
                code = bits
            else:
                code = code | (bits << 4)
    return code
