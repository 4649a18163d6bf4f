"""Run the Triton kernels of codes on tensors of 16 or 32 bits, those to encode contiguous.

Each function is its namesake in `actfit.kernels.engine.reference_codes`, on a GPU, or on the CPU under the interpreter.
Vectors have any floating-point type.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from actfit.kernels.engine.backend import interpreting
from actfit.kernels.engine.codes import in_two_steps
from actfit.kernels.engine.launch import device_of, rows_a_program
from actfit.kernels.engine.planes import plane_bytes
from actfit.kernels.engine.templates import ROWS, WARPS

NARROW = (1 << 31) - (1 << 17)  # elements that 32 bits count, with those past the end in the last program
RUNS = 32 * WARPS  # a program of kernels of runs, of which a thread has one
_TILE = 8192  # elements of a large group at a time, for 16 warps
EXACT = {"enable_fp_fusion": False}  # the reference rounds a product before the sum


def _template() -> ModuleType:
    from actfit.kernels.engine.templates import codes  # at the first call: Triton need not be installed

    return codes


def _groups() -> ModuleType:
    from actfit.kernels.engine.templates import groups

    return groups


def run_of(dtype: torch.dtype) -> int:
    """Elements of a run, see `actfit.kernels.engine.templates.runs`: 64 bytes."""
    itemsize: int = dtype.itemsize
    return 64 // itemsize


def _sizes(count: int) -> tuple[tuple[int], dict[str, Any]]:
    """The grid of a kernel of rows, and the constants that all such kernels take."""
    rows = rows_a_program(count)
    return (-(-count // (8 * rows)),), {"ROWS": rows, "num_warps": WARPS, **EXACT}


def places(vector: Tensor, group_size: int, count: int) -> tuple[str, int]:
    """PLACES of the vector, and what the kernel's group_size is for it: see `actfit.kernels.engine.templates.codes`."""
    exponent = (group_size // 8).bit_length() - 1
    is_power, has_each = group_size == 8 << max(exponent, 0), len(vector) == -(-count // group_size)
    if len(vector) == 1:
        return "one", group_size
    if is_power and has_each:
        return "power", exponent
    if group_size >= 8:
        return "two" if group_size % 8 else "row", group_size
    return "eight" if group_size == 1 and len(vector) % 8 == 0 else "each", group_size


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
            _groups().group_range_kernel[grid](
                x, minimum, scale, group_size, groups, count,
                BITS=bits, GROUPS=tile // width, WIDTH=width,
                num_warps=WARPS if small else 16, **EXACT
            )  # fmt: skip
    return minimum, scale


def encode_groups(x: Tensor, noise: Tensor | None, group_size: int, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Bit planes, minima and scales of x by groups: in one kernel if they are of neighbours and whole runs."""
    count, is_power = x.numel(), group_size & (group_size - 1) == 0
    run = run_of(x.dtype)
    if not (count and is_power and run <= group_size <= run * RUNS):
        return in_two_steps(ends, encode, x, noise, group_size, bits)
    planes = x.new_empty((bits, plane_bytes(count)), dtype=torch.uint8)
    minimum, scale = (x.new_empty(-(-count // group_size), dtype=torch.bfloat16) for _ in range(2))
    runs = max(rows_a_program(count, run, RUNS), group_size // run)
    with device_of(x):
        _groups().encode_groups_kernel[(-(-count // (run * runs)),)](
            x, x if noise is None else noise.contiguous(), minimum, scale, planes, count,
            NOISE=noise is not None, WHOLE=count % run == 0,
            BITS=bits, GROUP=group_size, RUN=run, RUNS=runs, num_warps=WARPS, **EXACT
        )  # fmt: skip
    return planes, minimum, scale


def encode(
    x: Tensor, center: Tensor, inverse_scale: Tensor, offset: Tensor, noise: Tensor | None, group_size: int, bits: int
) -> Tensor:
    """Bit planes uint8 [bits, ceil(n/8)] of the codes of x."""
    count = x.numel()
    planes = x.new_empty((bits, plane_bytes(count)), dtype=torch.uint8)
    if count:
        kind = "none" if noise is None else "one" if noise.numel() == 1 else "each"
        place, size = places(center, group_size, count)
        vectors = (vector.contiguous() for vector in (center, inverse_scale, offset))
        grid, constants = _sizes(count)
        with device_of(x):
            _template().encode_kernel[grid](
                x, *vectors, x if noise is None else noise.contiguous(), planes, size, len(center), count,
                PLACES=place, NOISE=kind, BITS=bits, WIDE=count > NARROW, **constants
            )  # fmt: skip
    return planes


def decode(planes: Tensor, scale: Tensor, minimum: Tensor, group_size: int, count: int, dtype: torch.dtype) -> Tensor:
    """Flat values of `dtype`, `count` of them."""
    values = planes.new_empty(count, dtype=dtype)
    if count:
        planes = planes if planes.stride(1) == 1 else planes.contiguous()
        place, size = places(scale, group_size, count)
        grid, constants = _sizes(count)
        with device_of(planes):
            _template().decode_kernel[grid](
                planes, scale.contiguous(), minimum.contiguous(), values, size, len(scale), planes.stride(0), count,
                PLACES=place, BITS=len(planes), WIDE=count > NARROW, **constants
            )  # fmt: skip
    return values
