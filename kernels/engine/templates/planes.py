"""Bit planes in Triton kernels, as `actfit.kernels.engine.planes` has them in PyTorch; and runs.

A run is RUN neighbours in memory, 64 bytes, that one thread has, so that what is computed for a group, or for an
address, is computed for many elements at once: 32 of 16 bits or 16 of 32. A thread loads them by four instructions.
Runs are [RUNS, RUN]. WHOLE: RUN divides n, the number of all elements.
"""

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


@triton.jit
def load_runs(x_ptr, run, n, WHOLE: tl.constexpr, RUN: tl.constexpr):
    """The elements of some runs, as float32; 0 past the end."""
    a = tl.join(_load_part(x_ptr, run, 0, n, WHOLE, RUN), _load_part(x_ptr, run, 1, n, WHOLE, RUN))
    b = tl.join(_load_part(x_ptr, run, 2, n, WHOLE, RUN), _load_part(x_ptr, run, 3, n, WHOLE, RUN))
    return tl.reshape(tl.permute(tl.join(a, b), (0, 3, 2, 1)), [run.shape[0], RUN]).to(tl.float32)


@triton.jit
def _load_part(x_ptr, run, part, n, WHOLE: tl.constexpr, RUN: tl.constexpr):
    at = run[:, None] * RUN + part * (RUN // 4) + tl.arange(0, RUN // 4)[None, :]
    return tl.load(x_ptr + at, mask=run[:, None] * RUN < n if WHOLE else at < n, other=0.0)


@triton.jit
def store_planes_of_runs(planes_ptr, code, run, n, WHOLE: tl.constexpr, BITS: tl.constexpr, RUN: tl.constexpr):
    """As `store_planes`, of [RUNS, RUN] codes; one store a run and plane if WHOLE."""
    bytes_of_run: tl.constexpr = RUN // 8
    code = tl.reshape(code, [run.shape[0], bytes_of_run, 8])
    place = tl.arange(0, bytes_of_run)[None, :]
    kind: tl.constexpr = tl.uint32 if RUN == 32 else tl.uint16
    for plane in tl.static_range(BITS):
        if plane % 4 == 0:
            words = packed(code, tl.arange(0, 8)[None, None, :], plane, BITS)
        byte = (words >> (8 * (plane % 4))) & 255
        at = planes_ptr + plane * ((n - 1) // 8 + 1) + run * bytes_of_run
        if WHOLE:
            together = tl.sum(byte << (8 * place), axis=1)
            tl.store(at.to(tl.pointer_type(kind)), together.to(kind), mask=run * RUN < n)
        else:
            inside = run[:, None] * RUN + 8 * place < n
            tl.store(at[:, None] + place, byte.to(tl.uint8), mask=inside)
