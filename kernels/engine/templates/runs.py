"""Runs in Triton kernels: neighbours in memory that one thread has, so that what is computed for a group, or for an
address, is computed for many elements at once.

A run is RUN elements, 64 bytes: 32 of 16 bits or 16 of 32. A thread loads them by four instructions. Runs are
[RUNS, RUN]. WHOLE: RUN divides n, the number of all elements.
"""

import triton
import triton.language as tl

from actfit.kernels.engine.templates.planes import packed


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
    """As `store_planes` of the planes beside this, of [RUNS, RUN] codes; one store a run and plane if WHOLE."""
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
