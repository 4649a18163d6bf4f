"""Run the Triton kernels of codes on tensors of 16 or 32 bits, those to encode contiguous.

Each function is its namesake in `kernels.engine.reference_codes`, on a GPU, or on the CPU under the interpreter.
Vectors have any floating-point type.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from kernels.engine.backend import interpreting
from kernels.engine.codes import Decode, Encode, called_with_fields_of, in_a_row, in_two_steps
from kernels.engine.launch import device_of, rows_a_program
from kernels.engine.planes import plane_bytes
from kernels.engine.templates import ROWS, WARPS

NARROW = (1 << 31) - (1 << 17)  # elements that 32 bits count, with those past the end in the last program
RUNS = 32 * WARPS  # a program of kernels of runs, of which a thread has one
_TILE = 8192  # elements of a large group at a time, for 16 warps
EXACT = {"enable_fp_fusion": False}  # the reference rounds a product before the sum


def _template() -> ModuleType:
    from kernels.engine.templates import codes  # at the first call: Triton need not be installed

    return codes


def _groups() -> ModuleType:
    from kernels.engine.templates import groups

    return groups


def run_of(dtype: torch.dtype) -> int:
    """Elements of a run, see `kernels.engine.templates.runs`: 64 bytes."""
    itemsize: int = dtype.itemsize
    return 64 // itemsize


def _sizes(count: int) -> tuple[tuple[int], dict[str, Any]]:
    """The grid of a kernel of rows, and the constants that all such kernels take."""
    rows = rows_a_program(count)
    return (-(-count // (8 * rows)),), {"ROWS": rows, "num_warps": WARPS, **EXACT}


def places(vector: Tensor, group_size: int, features: int = 1, tokens: int = 1, count: int = 0) -> tuple[str, int]:
    """PLACES of the vector, and what the kernel's group_size is for it: see `kernels.engine.templates.codes`."""
    exponent = (group_size // 8).bit_length() - 1
    is_power, has_each = group_size == 8 << max(exponent, 0), len(vector) == -(-count // group_size)
    if is_power and has_each and in_a_row(count, group_size, features, tokens) and len(vector) > 1:
        return "power", exponent
    return _places(vector, group_size, features, tokens, count), group_size


def _places(vector: Tensor | None, group_size: int, features: int = 1, tokens: int = 1, count: int = 0) -> str:
    if vector is None:
        return "none"
    if len(vector) == 1:
        return "one"
    if features % 8 == 0:
        return "wide"
    if not in_a_row(count, group_size, features, tokens):
        return "any"
    if group_size >= 8:
        return "two" if group_size % 8 else "row"
    return "eight" if group_size == 1 and len(vector) % 8 == 0 else "each"


def _like(vector: Tensor, other: Tensor) -> Tensor:
    """The vector at the length of the other; a single entry is repeated."""
    return vector.expand(len(other)).contiguous()


def ends(x: Tensor, group_size: int, features: int, tokens: int, bits: int) -> tuple[Tensor, Tensor]:
    """The minimum of each group of x, and the scale of codes of `bits` bits over it: bfloat16 each."""
    count = x.numel()
    groups = count // tokens * -(-tokens // group_size)
    minimum, scale = (x.new_empty(groups, dtype=torch.bfloat16) for _ in range(2))
    if count:
        small = group_size <= 8 * ROWS
        tile = 8 * rows_a_program(count) if small or interpreting() else _TILE
        # Neighbours in memory are of one group, or, of several features, of neighbouring groups.
        width = min(1 << (group_size - 1).bit_length(), tile if features == 1 else 8)
        grid = (-(-groups // (tile // width)),)
        with device_of(x):
            _groups().group_range_kernel[grid](
                x, minimum, scale, group_size, features, tokens, groups, count,
                BITS=bits, GROUPS=tile // width, WIDTH=width,
                num_warps=WARPS if small else 16, **EXACT
            )  # fmt: skip
    return minimum, scale


def encode_groups(
    x: Tensor, noise: Tensor | None, group_size: int, features: int, tokens: int, bits: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Bit planes, minima and scales of x by groups: in one kernel if they are of neighbours and whole runs."""
    count, is_power = x.numel(), group_size & (group_size - 1) == 0
    is_row = in_a_row(count, group_size, features, tokens)
    run = run_of(x.dtype)
    if not (count and is_row and is_power and run <= group_size <= run * RUNS):
        return in_two_steps(ends, encode, x, noise, group_size, features, tokens, bits)
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


@called_with_fields_of(Encode)
def encode(args: Encode) -> Tensor:
    """Bit planes uint8 [bits, ceil(n/8)] of the codes of x."""
    count = args.x.numel()
    planes = args.x.new_empty((args.bits, plane_bytes(count)), dtype=torch.uint8)
    if count:
        kind = "none" if args.noise is None else "one" if args.noise.numel() == 1 else "each"
        place, size = places(args.center, args.group_size, args.features, args.tokens, count)
        grid, constants = _sizes(count)
        with device_of(args.x):
            _template().encode_kernel[grid](
                args.x,
                args.center.contiguous(),
                _like(args.inverse_scale, args.center),
                _like(args.offset, args.center),
                args.x if args.noise is None else args.noise.contiguous(),
                planes,
                size,
                args.features,
                args.tokens,
                len(args.center),
                count,
                PLACES=place,
                NOISE=kind,
                BITS=args.bits,
                WIDE=count > NARROW,
                **constants,
            )
    return planes


@called_with_fields_of(Decode)
def decode(args: Decode) -> Tensor:
    """Flat values of `dtype`, `count` of them."""
    values = args.planes.new_empty(args.count, dtype=args.dtype)
    if args.count:
        planes = args.planes if args.planes.stride(1) == 1 else args.planes.contiguous()
        place, size = places(args.scale, args.group_size, args.features, args.tokens, args.count)
        grid, constants = _sizes(args.count)
        with device_of(planes):
            _template().decode_kernel[grid](
                planes,
                args.scale.contiguous(),
                _like(args.minimum, args.scale),
                args.scale if args.gain is None else args.gain.contiguous(),
                args.scale if args.bias is None else args.bias.contiguous(),
                args.planes if args.signs is None else args.signs,
                values,
                float(args.slope),
                size,
                args.features,
                args.tokens,
                len(args.scale),
                args.inner,
                1 if args.gain is None else len(args.gain),
                1 if args.bias is None else len(args.bias),
                planes.stride(0),
                args.count,
                PLACES=place,
                GAIN=_places(args.gain, args.inner),
                BIAS=_places(args.bias, args.inner),
                SIGNS=args.signs is not None,
                SLOPED=args.slope != 0,
                CLAMP=args.clamp,
                BITS=len(args.planes),
                WIDE=args.count > NARROW,
                **constants,
            )
    return values


def rectify(x: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    """y like x, and uint8 [1, ceil(n/8)], set where x is above 0 or NaN."""
    y, signs = torch.empty_like(x), x.new_empty((1, plane_bytes(x.numel())), dtype=torch.uint8)
    if count := x.numel():
        grid, constants = _sizes(count)
        with device_of(x):
            _template().rectify_kernel[grid](x, y, signs, float(slope), count, SLOPED=slope != 0, **constants)
    return y, signs


def rectify_backward(grad: Tensor, signs: Tensor, slope: float) -> Tensor:
    """dx like grad, of the plane of `rectify`."""
    dx = torch.empty_like(grad)
    if count := grad.numel():
        grid, constants = _sizes(count)
        with device_of(grad):
            _template().rectify_backward_kernel[grid](
                grad, signs, dx, float(slope), count, SLOPED=slope != 0, **constants
            )
    return dx
