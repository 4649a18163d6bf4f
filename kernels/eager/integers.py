"""Codes of integers, exact, in as many bits as they need by what the function that saves them was given."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.eager.calls import POOLS
from kernels.eager.encoded import Encoded
from kernels.eager.tensors import Place, flat
from kernels.engine.planes import pack, unpack

BYTE = 8
# They save indices along a dimension of the tensor that they take numbers of, or put them into.
INDICES = frozenset(
    [
        *("embedding", "gather", "index_select", "scatter", "scatter_add"),
        *("sort", "topk", "kthvalue", "cummax", "cummin"),
    ]
)


class Integers(Encoded):
    """Whole numbers from 0 on and below a bound."""

    def __init__(self, flat: Tensor, bound: int) -> None:
        self.count, self.dtype = flat.numel(), flat.dtype
        bits = max(1, (bound - 1).bit_length())
        self._tensors = []
        for low in range(0, bits, BYTE):
            byte = (flat >> low).bitwise_and_(255).to(torch.uint8)
            self._tensors.append(pack(byte, min(BYTE, bits - low)))

    def decode(self, tensors: list[Tensor]) -> Tensor:
        first, *others = (unpack(planes, self.count).to(self.dtype) for planes in tensors)
        for place, byte in enumerate(others, 1):
            first.bitwise_or_(byte.bitwise_left_shift_(place * BYTE))
        return first


class Windows(NamedTuple):
    """Those of pooling along one dimension of `size` numbers.

    Window i is of `kernel` places, `dilation` apart, the first of which is i * stride - padding.
    """

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    def starts(self, count: int, device: torch.device) -> Tensor:
        """The first places of so many windows."""
        return torch.arange(count, device=device) * self.stride - self.padding


class InWindows(Integers):
    """Places in an image, each of which is in the window of where it stands: where in the window it is.

    Parameters
    ----------
    x
        Places, as max pooling gives them, [..., *counts]; all of a storage, in whatever order.
    windows
        Of each of the last dimensions.
    """

    def __init__(self, x: Tensor, windows: Sequence[Windows]) -> None:
        self.place, self.windows = Place.of(x), windows
        inside, rest, bound = torch.zeros_like(x), x, 1
        for starts, of in self._starts(x.device):
            inside += (rest % of.size - starts) // of.dilation * bound
            rest, bound = rest // of.size, bound * of.kernel
        super().__init__(flat(inside), bound)

    def decode(self, tensors: list[Tensor]) -> Tensor:
        rest = super().decode(tensors).as_strided(*self.place)
        x, size = torch.zeros_like(rest), 1
        for starts, of in self._starts(rest.device):
            x += (rest % of.kernel * of.dilation + starts) * size
            rest, size = rest // of.kernel, size * of.size
        return flat(x)

    def _starts(self, device: torch.device) -> list[tuple[Tensor, Windows]]:
        """Of the last dimension first, each to go along its dimension."""
        last = zip(reversed(self.place.size), reversed(self.windows), strict=False)  # as many as there are windows
        return [(of.starts(count, device)[(..., *[None] * dim)], of) for dim, (count, of) in enumerate(last)]


Coding = Callable[[Tensor], Encoded]


def coding_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], given: Sequence[Tensor]) -> Coding | None:
    """What makes codes of the integers that a function saves, by its name and arguments; None if it is not known.

    A tensor of them is to be all of its storage. Where dilation is larger than an image, PyTorch lets a window of
    pooling have no place in it, and says one beyond: none of such is coded.
    """
    if name in POOLS and given:
        windows = _windows(given[0].shape[-POOLS[name] :], args, kwargs)
        if any(of.dilation > of.size for of in windows):
            return None
        if len(windows) == 3 and given[0].device.type == "cpu" and not given[0].is_contiguous():
            # Of windows that hold nothing but -inf PyTorch then says places in the first layers, whatever their depth.
            return partial(_integers, bound=math.prod(of.size for of in windows))
        return partial(InWindows, windows=windows)
    if name in INDICES:
        sizes = [size for x in given if x.is_floating_point() for size in x.shape]
        return partial(_integers, bound=max(sizes)) if sizes else None
    return None


def _integers(x: Tensor, bound: int) -> Encoded:
    return Integers(flat(x), bound)


def _windows(sizes: Sequence[int], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Windows]:
    """Those of max pooling, all of whose functions take their arguments in one order."""

    def each(name: str, place: int, usual: Any) -> list[int]:
        value = kwargs.get(name, args[place] if len(args) > place else None)
        value = usual if value is None or value == () or value == [] else value
        values = list(value) if isinstance(value, Sequence) else [value]
        return values * len(sizes) if len(values) == 1 else values

    kernel = each("kernel_size", 1, 1)
    others = [each(*argument) for argument in (("stride", 2, kernel), ("padding", 3, 0), ("dilation", 4, 1))]
    return list(map(Windows, sizes, kernel, *others))
