"""Run the Triton kernels of `kernels.engine.templates.codes` on contiguous tensors of 16 or 32 bits.

Each function is its namesake in `kernels.engine.reference_codes`, on a GPU, or on the CPU under the interpreter.
Vectors have any floating-point type.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from kernels.engine.backend import interpreting
from kernels.engine.codes import Decode, Encode, taking
from kernels.engine.launch import device_of, rows_a_program
from kernels.engine.planes import plane_bytes
from kernels.engine.templates import ROWS, WARPS

_NARROW = (1 << 31) - (1 << 17)  # elements that 32 bits count, with those past the end in the last program
_TILE = 8192  # elements of a large group at a time, for 16 warps
_EXACT = {"enable_fp_fusion": False}  # the reference rounds a product before the sum


def _template() -> ModuleType:
    from kernels.engine.templates import codes  # at the first call: Triton need not be installed

    return codes


def _sizes(count: int) -> tuple[tuple[int], dict[str, Any]]:
    """The grid of a kernel of rows, and the constants that all such kernels take."""
    rows = rows_a_program(count)
    return (-(-count // (8 * rows)),), {"ROWS": rows, "num_warps": WARPS, **_EXACT}


def _places(vector: Tensor | None, run: int, wide: int = 1, tokens: int = 1, count: int = 0) -> str:
    """PLACES of the vector, see `kernels.engine.templates.codes`."""
    if vector is None:
        return "none"
    if len(vector) == 1:
        return "one"
    if wide % 8 == 0:
        return "wide"
    if wide > 1 or (tokens % run and tokens < count):
        return "any"
    if run >= 8:
        return "two" if run % 8 else "row"
    return "eight" if run == 1 and len(vector) % 8 == 0 else "each"


def _like(vector: Tensor, other: Tensor) -> Tensor:
    """The vector at the length of the other; a single entry is repeated."""
    return vector.expand(len(other)).contiguous()


def ends(x: Tensor, run: int, wide: int, tokens: int, bits: int) -> tuple[Tensor, Tensor]:
    """The minimum of each group of x, and the step of codes of `bits` bits over it: bfloat16 each."""
    count = x.numel()
    groups = count // tokens * -(-tokens // run)
    minimum, step = (x.new_empty(groups, dtype=torch.bfloat16) for _ in range(2))
    if count:
        small = run <= 8 * ROWS
        tile = 8 * rows_a_program(count) if small or interpreting() else _TILE
        # Neighbours in memory are of one group, or, if wide, of neighbouring groups.
        width = min(1 << (run - 1).bit_length(), tile if wide == 1 else 8)
        grid = (-(-groups // (tile // width)),)
        with device_of(x):
            _template().group_range_kernel[grid](
                x, minimum, step, run, wide, tokens, groups, count,
                BITS=bits, GROUPS=tile // width, WIDTH=width, num_warps=WARPS if small else 16, **_EXACT
            )  # fmt: skip
    return minimum, step


@taking(Encode)
def encode(given: Encode) -> Tensor:
    """Bit planes uint8 [bits, ceil(n/8)] of the codes of x."""
    count = given.x.numel()
    planes = given.x.new_empty((given.bits, plane_bytes(count)), dtype=torch.uint8)
    if count:
        kind = "none" if given.noise is None else "one" if given.noise.numel() == 1 else "each"
        grid, constants = _sizes(count)
        with device_of(given.x):
            _template().encode_kernel[grid](
                given.x,
                given.center.contiguous(),
                _like(given.scale, given.center),
                _like(given.offset, given.center),
                given.x if given.noise is None else given.noise.contiguous(),
                planes,
                given.run,
                given.wide,
                given.tokens,
                len(given.center),
                count,
                PLACES=_places(given.center, given.run, given.wide, given.tokens, count),
                NOISE=kind,
                BITS=given.bits,
                WIDE=count > _NARROW,
                **constants,
            )
    return planes


@taking(Decode)
def decode(given: Decode) -> Tensor:
    """Flat values of `dtype`, `count` of them."""
    values = given.planes.new_empty(given.count, dtype=given.dtype)
    if given.count:
        grid, constants = _sizes(given.count)
        with device_of(given.planes):
            _template().decode_kernel[grid](
                given.planes,
                given.step.contiguous(),
                _like(given.base, given.step),
                given.step if given.gain is None else given.gain.contiguous(),
                given.step if given.bias is None else given.bias.contiguous(),
                given.planes if given.signs is None else given.signs,
                values,
                float(given.slope),
                given.run,
                given.wide,
                given.tokens,
                len(given.step),
                given.inner,
                1 if given.gain is None else len(given.gain),
                1 if given.bias is None else len(given.bias),
                given.count,
                PLACES=_places(given.step, given.run, given.wide, given.tokens, given.count),
                GAIN=_places(given.gain, given.inner),
                BIAS=_places(given.bias, given.inner),
                SIGNS=given.signs is not None,
                SLOPED=given.slope != 0,
                CLAMP=given.clamp,
                BITS=len(given.planes),
                WIDE=given.count > _NARROW,
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
