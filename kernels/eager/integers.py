"""Exact codes of integers, in as many bits as the arguments of the saving function call for."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.eager.calls import POOLS
from kernels.eager.encoded import Encoded
from kernels.eager.tensors import ViewGeometry, flat
from kernels.engine.planes import pack, unpack

BYTE = 8
# They save indices along a dimension of the tensor that they read from or write to.
INDICES = frozenset(
    [
        *("embedding", "gather", "index_select", "scatter", "scatter_add"),
        *("sort", "topk", "kthvalue", "cummax", "cummin"),
    ]
)


class Integers(Encoded):
    """Integers from 0 to below a bound."""

    def __init__(self, flat: Tensor, bound: int) -> None:
        self.count, self.dtype = flat.numel(), flat.dtype
        bits = max(1, (bound - 1).bit_length())
        self._tensors = []
        for low in range(0, bits, BYTE):
            byte = (flat >> low).bitwise_and_(255).to(torch.uint8)
            self._tensors.append(pack(byte, min(BYTE, bits - low)))

    def decode(self, tensors: list[Tensor]) -> Tensor:
        first, *others = (unpack(planes, self.count).to(self.dtype) for planes in tensors)
        for number, byte in enumerate(others, 1):
            first.bitwise_or_(byte.bitwise_left_shift_(number * BYTE))
        return first


class Windows(NamedTuple):
    """Windows of pooling along one dimension of `size` elements.

    Window i has `kernel` positions, `dilation` apart, from i * stride - padding on.
    """

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    def starts(self, count: int, device: torch.device) -> Tensor:
        """The first positions of `count` windows."""
        return torch.arange(count, device=device) * self.stride - self.padding


class InWindows(Integers):
    """Positions in an image, one of each pooling window, coded as positions within their windows.

    Parameters
    ----------
    x
        Positions as max pooling returns them, [..., *counts]; they fill a storage, in any order.
    windows
        One for each of the last dimensions.
    """

    def __init__(self, x: Tensor, windows: Sequence[Windows]) -> None:
        self.geometry, self.windows = ViewGeometry.of(x), windows
        inside, rest, bound = torch.zeros_like(x), x, 1
        for starts, of in self._starts(x.device):
            inside += (rest % of.size - starts) // of.dilation * bound
            rest, bound = rest // of.size, bound * of.kernel
        super().__init__(flat(inside), bound)

    def decode(self, tensors: list[Tensor]) -> Tensor:
        rest = super().decode(tensors).as_strided(*self.geometry)
        x, size = torch.zeros_like(rest), 1
        for starts, of in self._starts(rest.device):
            x += (rest % of.kernel * of.dilation + starts) * size
            rest, size = rest // of.kernel, size * of.size
        return flat(x)

    def _starts(self, device: torch.device) -> list[tuple[Tensor, Windows]]:
        """First positions and windows, the last dimension first, shaped to broadcast along their dimension."""
        last = zip(reversed(self.geometry.size), reversed(self.windows), strict=False)  # as many as there are windows
        return [(of.starts(count, device)[(..., *[None] * dim)], of) for dim, (count, of) in enumerate(last)]


Coding = Callable[[Tensor], Encoded]


def coding_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], operands: Sequence[Tensor]) -> Coding | None:
    """The encoder of integers that a function saves, by its name and arguments; None if there is none.

    The integers must fill their storage. If dilation exceeds the image, PyTorch allows pooling windows outside of the
    image and returns positions beyond it: these are not coded.
    """
    if name in POOLS and operands:
        windows = _windows(operands[0].shape[-POOLS[name] :], args, kwargs)
        if any(of.dilation > of.size for of in windows):
            return None
        if len(windows) == 3 and operands[0].device.type == "cpu" and not operands[0].is_contiguous():
            # PyTorch then returns positions in the first layers for windows of nothing but -inf, at any depth.
            return partial(_integers, bound=math.prod(of.size for of in windows))
        return partial(InWindows, windows=windows)
    if name in INDICES:
        sizes = [size for x in operands if x.is_floating_point() for size in x.shape]
        return partial(_integers, bound=max(sizes)) if sizes else None
    return None


def _integers(x: Tensor, bound: int) -> Encoded:
    return Integers(flat(x), bound)


def _windows(sizes: Sequence[int], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Windows]:
    """The windows of max pooling; all its functions take their arguments in the same order."""

    def each(name: str, position: int, usual: Any) -> list[int]:
        value = kwargs.get(name, args[position] if len(args) > position else None)
        value = usual if value is None or value == () or value == [] else value
        values = list(value) if isinstance(value, Sequence) else [value]
        return values * len(sizes) if len(values) == 1 else values

    kernel = each("kernel_size", 1, 1)
    others = [each(*argument) for argument in (("stride", 2, kernel), ("padding", 3, 0), ("dilation", 4, 1))]
    return list(map(Windows, sizes, kernel, *others))
