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
from actfit.kernels.engine.codes import LARGEST_HALF, bits_of, room_for
from actfit.kernels.engine.launch import device_of, rows_a_program, run_rows, template
from actfit.kernels.engine.planes import plane_bytes
from actfit.kernels.engine.templates import WARPS

NARROW = (1 << 31) - (1 << 17)  # elements that 32 bits count, with those past the end in the last program
LENGTHS = 4096  # of tensors whose launches are kept
RUN_BYTES = 64  # see `actfit.kernels.engine.templates.planes`
RUNS = 32 * WARPS  # a program of kernels of runs, of which a thread has one
_is_alone = cache(lambda: torch.cuda.device_count() < 2)  # then no other GPU can be the current one
_OPTIONS = {"num_warps": WARPS, "enable_fp_fusion": False}  # the reference rounds a product before the sum


def ends(x: Tensor, group_size: int, bits: int) -> tuple[Tensor, Tensor]:
    """The minimum of each group of x, and the scale of codes of `bits` bits over it: bfloat16 each."""
    count = x.numel()
    groups, width = -(-count // group_size), 1 << (group_size - 1).bit_length()
    minimum, scale = (x.new_empty(groups, dtype=torch.bfloat16) for _ in range(2))
    if count:
        many = max(8 * rows_a_program(count) // width, 1)
        with device_of(x):
            template("codes").group_range_kernel[-(-groups // many),](
                x, minimum, scale, group_size, groups, count, BITS=bits, GROUPS=many, WIDTH=width, **_OPTIONS
            )
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
    """Codes, minima and scales of x by groups: in one kernel if they are whole runs."""
    count = x.numel()
    launch = _encoding(count, x.dtype, x.device, group_size, bits, noise is not None)
    if launch is None:
        minimum, scale = ends(x, group_size, bits)
        return encode(x, minimum, 1 / scale.float(), noise, group_size, bits), minimum, scale
    codes = room_for(x, bits)
    minimum, scale = (x.new_empty(-(-count // group_size), dtype=torch.bfloat16) for _ in range(2))
    launch(x, x if noise is None else noise.contiguous(), minimum, scale, codes)
    return codes, minimum, scale


@lru_cache(LENGTHS)
def _encoding(
    count: int, dtype: torch.dtype, device: torch.device, group_size: int, bits: int, noise: bool
) -> Launch | None:
    """None where one kernel does not encode: of groups that are no power of 2, or smaller than a run."""
    run: int = RUN_BYTES // dtype.itemsize
    is_power = group_size & (group_size - 1) == 0
    if not (count and is_power and run <= group_size):
        return None
    runs = max(rows_a_program(count, run, RUNS), group_size // run)
    return Launch(
        template("codes").encode_groups_kernel, -(-count // (run * runs)), count,
        NOISE=noise, WHOLE=count % run == 0, BITS=bits, GROUP=group_size, RUN=run, RUNS=runs,
    )  # fmt: skip


def encode(x: Tensor, minimum: Tensor, inverse: Tensor, noise: Tensor | None, group_size: int, bits: int) -> Tensor:
    """The codes of x, by the ends of its groups."""
    codes = room_for(x, bits)
    run_rows(
        template("codes").encode_kernel, x,
        x, minimum.contiguous(), inverse.contiguous(), x if noise is None else noise.contiguous(), codes,
        NOISE=noise is not None, BITS=bits, GROUP=group_size, WIDE=x.numel() > NARROW, **_OPTIONS,
    )  # fmt: skip
    return codes


def decode_groups(
    codes: Tensor, minimum: Tensor, scale: Tensor, group_size: int, count: int, dtype: torch.dtype
) -> Tensor:
    """Flat values of `dtype`, `count` of them."""
    values = codes.new_empty(count, dtype=dtype)
    if count:
        launch = _decoding(count, dtype, codes.device, group_size, bits_of(codes))
        launch(codes.contiguous(), minimum.contiguous(), scale.contiguous(), values)
    return values


@lru_cache(LENGTHS)
def _decoding(count: int, dtype: torch.dtype, device: torch.device, group_size: int, bits: int) -> Launch:
    rows, largest = rows_a_program(count), LARGEST_HALF if dtype == torch.float16 else 0
    return Launch(
        template("codes").decode_groups_kernel, -(-count // (8 * rows)), count,
        BITS=bits, GROUP=group_size, LARGEST=largest, WIDE=count > NARROW, ROWS=rows,
    )  # fmt: skip


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
