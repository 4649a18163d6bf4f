"""Operations that are faster on a CPU than those of `actfit.kernels.engine.planes` and of emitted text.

Numba, where it is, compiles loops. NumPy packs bit planes, as PyTorch has no packbits, and compares, as
PyTorch's comparisons use no vector instructions; `where` works on bits, as torch.where branches for each number and
mispredicts. Functions of 16-bit numbers can be read from a table of all 65,536. Tensors on other devices take the plain
operations.
"""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from actfit.kernels.engine import planes
from actfit.kernels.engine.elements import INTEGERS

COUNT_16_BIT = 1 << 16  # values of a 16-bit dtype
_CONSTANTS = 256  # polynomials whose coefficients are kept as tensors


def on_host(tensor: Tensor) -> bool:
    """Whether NumPy can read the tensor without a copy."""
    return bool(tensor.device.type == "cpu")


@cache
def loops() -> ModuleType | None:
    """`actfit.kernels.engine.neighbours`, imported when it is first needed, as Numba takes a second; None without
    Numba, or where it compiles nothing."""
    try:
        from actfit.coefficients import compiled
        from actfit.kernels.engine import neighbours
    except ImportError:
        return None
    return neighbours if compiled.IS_ON else None


def pack(codes: Tensor, bits: int) -> Tensor:
    """As `planes.pack`: uint8 [bits, ceil(n/8)] of flat uint8 codes below 2**bits, or of bool for one bit."""
    if not on_host(codes):
        return planes.pack(codes.view(torch.uint8), bits)
    numbers = codes.numpy()
    packed = torch.empty((bits, (codes.numel() + 7) // 8), dtype=torch.uint8)  # PyTorch's, as it counts its own memory
    for plane, row in enumerate(packed.numpy()):
        row[:] = np.packbits(numbers if bits == 1 else numbers & (1 << plane), bitorder="little")
    return packed


def unpack(packed: Tensor, count: int) -> Tensor:
    """As `planes.unpack`: the first `count` codes, flat uint8."""
    if not on_host(packed):
        return planes.unpack(packed, count)
    *lower, codes = (np.unpackbits(plane, bitorder="little") for plane in packed.numpy())
    for bits in reversed(lower):
        codes += codes  # NumPy's shifts of bytes use no vectors
        codes |= bits
    return torch.from_numpy(codes[:count])


def holds(condition: Callable[..., Tensor], x: Tensor, params: Sequence[float]) -> Tensor:
    """bool: where an emitted condition holds, such as x >= -0.75, which NumPy arrays take, too."""
    return torch.from_numpy(condition(x.numpy(), params)) if on_host(x) else condition(x, params)


def where(condition: Tensor, values: Tensor, other: Tensor) -> Tensor:
    """torch.where for two tensors of the same floating-point dtype."""
    if not on_host(other):
        return torch.where(condition, values, other)
    integers = INTEGERS[other.dtype]
    mask, bits = condition.to(integers).neg_(), other.view(integers)
    return mask.bitwise_and_(values.view(integers) ^ bits).bitwise_xor_(bits).view(other.dtype)


def sqrt(x: Tensor) -> Tensor:
    """torch.sqrt. PyTorch calls MKL's, which takes four times as long as NumPy's, and forty times at 0."""
    if not on_host(x):
        return torch.sqrt(x)
    with np.errstate(invalid="ignore"):  # for a signalling NaN
        return torch.from_numpy(np.sqrt(x.numpy()))


def polynomial(x: Tensor, highest: float, following: float, *others: float) -> Tensor:
    """The polynomial in x with these coefficients, the highest first; a step passes over memory once, not twice."""
    y = torch.mul(x, highest).add_(following)
    for constant in _tensors(others, x.dtype, x.device):
        torch.addcmul(constant, y, x, out=y)
    return y


@lru_cache(_CONSTANTS)
def _tensors(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    return [torch.tensor(number, dtype=dtype, device=device) for number in numbers]


@cache
def all_values(dtype: torch.dtype) -> Tensor:
    """All values of a 16-bit dtype, in the order of their bits."""
    return torch.arange(COUNT_16_BIT, dtype=torch.int32, device="cpu").to(torch.int16).view(dtype)


def index_of(x: Tensor) -> Tensor:
    """int32: the index in `all_values` of each number of a 16-bit dtype."""
    return x.view(torch.uint16).to(torch.int32)
