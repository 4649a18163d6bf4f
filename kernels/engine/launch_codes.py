"""Run the Triton kernels of codes on tensors of 16 or 32 bits, those to encode contiguous.

Each function is its namesake in `actfit.kernels.engine.reference_codes`, on a GPU, or on the CPU under the interpreter.
Vectors have any floating-point type.
"""

from contextlib import nullcontext
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from actfit.kernels.engine.backend import interpreting
from actfit.kernels.engine.codes import LARGEST_HALF, bits_of, in_two_steps, room_for
from actfit.kernels.engine.launch import device_of, rows_a_program, run_rows, template
from actfit.kernels.engine.planes import plane_bytes
from actfit.kernels.engine.templates import ROWS, WARPS

NARROW = (1 << 31) - (1 << 17)  # elements that 32 bits count, with those past the end in the last program
LENGTHS = 4096  # of tensors whose launches are kept
RUNS = 32 * WARPS  # a program of kernels of runs, of which a thread has one
_TILE = 8192  # elements of a large group at a time, for 16 warps
_is_alone = cache(lambda: torch.cuda.device_count() < 2)  # then no other GPU can be the current one
_OPTIONS = {"num_warps": WARPS, "enable_fp_fusion": False}  # the reference rounds a product before the sum


def run_of(dtype: torch.dtype) -> int:
    """Elements of a run, see `actfit.kernels.engine.templates.runs`: 64 bytes."""
    itemsize: int = dtype.itemsize
    return 64 // itemsize


def places(vector: Tensor, group_size: int) -> str:
    """PLACES of the vector: see `actfit.kernels.engine.templates.codes`."""
    if len(vector) == 1:
        return "one"
    if group_size >= 8:
        return "two" if group_size % 8 else "row"
    return "eight" if group_size == 1 and len(vector) % 8 == 0 else "each"


def ends(x: Tensor, group_size: int, bits: int) -> tuple[Tensor, Tensor]:
    """The minimum of each group of x, and the scale of codes of `bits` bits over it: bfloat16 each."""
    count = x.numel()
    groups = -(-count // group_size)
    minimum, scale = (x.new_empty(groups, dtype=torch.bfloat16) for _ in range(2))
    if count:
        small = group_size <= 8 * ROWS
        tile = 8 * rows_a_program(count) if small or interpreting() else _TILE
        width = min(1 << (group_size - 1).bit_length(), tile)
        grid = (-(-groups // (tile // width)),)
        with device_of(x):
            template("groups").group_range_kernel[grid](
                x, minimum, scale, group_size, groups, count,
                BITS=bits, GROUPS=tile // width, WIDTH=width,
                **(_OPTIONS if small else {**_OPTIONS, "num_warps": 16})
            )  # fmt: skip
    return minimum, scale


class Launch:
    """The launch of a kernel on so many elements, which differs from call to call in its tensors alone.

    On a GPU a kernel that ran before with tensors of the same kind is launched again as it is: Triton's own launch
    looks at each argument anew, some 30 microseconds of the host's time. The kernel's arguments are the tensors, the
    count and the constants, in this order.
    """

    def __init__(self, kernel: Any, programs: int, count: int, **constants: Any) -> None:
        self.kernel, self.grid, self.count, self.constants = kernel, (programs, 1, 1), count, constants
        self.others = (count, *constants.values())
        self.compiled: dict[Any, Any] = {}  # by each tensor's dtype, and whether it begins at a multiple of 16 bytes

    def __call__(self, *tensors: Tensor) -> None:
        kinds = tuple((tensor.dtype, tensor.data_ptr() % 16 == 0) for tensor in tensors)
        with nullcontext() if _is_alone() else device_of(tensors[0]):
            compiled = self.compiled.get(kinds)
            if compiled is not None:
                compiled[self.grid](*tensors, *self.others)
                return
            compiled = self.kernel[self.grid](*tensors, self.count, **self.constants, **_OPTIONS)
            if not interpreting():
                self.compiled[kinds] = compiled


def encode_groups(x: Tensor, noise: Tensor | None, group_size: int, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, minima and scales of x by groups: in one kernel if they are of neighbours and whole runs."""
    count = x.numel()
    launch = _encoding(count, x.dtype, x.device, group_size, bits, noise is not None)
    if launch is None:
        return in_two_steps(ends, encode, x, noise, group_size, bits)
    codes = room_for(x, bits)
    minimum, scale = (x.new_empty(-(-count // group_size), dtype=torch.bfloat16) for _ in range(2))
    launch(x, x if noise is None else noise.contiguous(), minimum, scale, codes)
    return codes, minimum, scale


@lru_cache(LENGTHS)
def _encoding(
    count: int, dtype: torch.dtype, device: torch.device, group_size: int, bits: int, noise: bool
) -> Launch | None:
    """None where one kernel does not encode: of groups that are no power of 2, or are too small or large."""
    run, is_power = run_of(dtype), group_size & (group_size - 1) == 0
    if not (count and is_power and run <= group_size <= run * RUNS):
        return None
    runs = max(rows_a_program(count, run, RUNS), group_size // run)
    return Launch(
        template("groups").encode_groups_kernel, -(-count // (run * runs)), count,
        NOISE=noise, WHOLE=count % run == 0, BITS=bits, GROUP=group_size, RUN=run, RUNS=runs,
    )  # fmt: skip


def decode_neighbours(
    codes: Tensor, minimum: Tensor, scale: Tensor, group_size: int, count: int, dtype: torch.dtype
) -> Tensor | None:
    """Flat values of groups of neighbours, as the op `decode_groups` gives them; None where one kernel does not."""
    if group_size % 8 or len(scale) != -(-count // group_size) or not (count and codes.is_contiguous()):
        return None
    values = codes.new_empty(count, dtype=dtype)
    launch = _decoding(count, dtype, codes.device, group_size, bits_of(codes))
    launch(codes, minimum.contiguous(), scale.contiguous(), values)
    return values


@lru_cache(LENGTHS)
def _decoding(count: int, dtype: torch.dtype, device: torch.device, group_size: int, bits: int) -> Launch:
    rows, largest = rows_a_program(count), LARGEST_HALF if dtype == torch.float16 else 0
    return Launch(
        template("groups").decode_groups_kernel, -(-count // (8 * rows)), count,
        BITS=bits, GROUP=group_size, LARGEST=largest, WIDE=count > NARROW, ROWS=rows,
    )  # fmt: skip


def encode(
    x: Tensor, center: Tensor, inverse_scale: Tensor, offset: Tensor, noise: Tensor | None, group_size: int, bits: int
) -> Tensor:
    """The codes of x."""
    codes = room_for(x, bits)
    kind = "none" if noise is None else "one" if noise.numel() == 1 else "each"
    vectors = (vector.contiguous() for vector in (center, inverse_scale, offset))
    run_rows(
        template("codes").encode_kernel, x,
        x, *vectors, x if noise is None else noise.contiguous(), codes, group_size, len(center),
        PLACES=places(center, group_size), NOISE=kind, BITS=bits, WIDE=x.numel() > NARROW, **_OPTIONS,
    )  # fmt: skip
    return codes


def decode(codes: Tensor, scale: Tensor, minimum: Tensor, group_size: int, count: int, dtype: torch.dtype) -> Tensor:
    """Flat values of `dtype`, `count` of them."""
    values = codes.new_empty(count, dtype=dtype)
    codes = codes if codes.stride(-1) == 1 else codes.contiguous()
    vectors = (vector.contiguous() for vector in (scale, minimum))
    run_rows(
        template("codes").decode_kernel, values,
        codes, *vectors, values, group_size, len(scale), codes.stride(0),
        PLACES=places(scale, group_size), BITS=bits_of(codes), WIDE=count > NARROW, **_OPTIONS,
    )  # fmt: skip
    return values


def pack(x: Tensor) -> Tensor:
    """Flat bools as bits, uint8 [ceil(n/8)]."""
    packed = x.new_empty(plane_bytes(len(x)), dtype=torch.uint8)
    if len(x):
        _of_bits("pack", len(x), x.device)(x.view(torch.uint8), packed)
    return packed


def unpack(packed: Tensor, count: int) -> Tensor:
    """The reverse: bool [count]."""
    x = packed.new_empty(count, dtype=torch.bool)
    if count:
        _of_bits("unpack", count, packed.device)(packed, x.view(torch.uint8))
    return x


@lru_cache(LENGTHS)
def _of_bits(name: str, count: int, device: torch.device) -> Launch:
    rows = rows_a_program(count)
    return Launch(getattr(template("codes"), f"{name}_kernel"), -(-count // (8 * rows)), count, ROWS=rows)
