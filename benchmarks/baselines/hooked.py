"""Activation compression by hooks: whatever autograd saves, in few bits, as GACT (ICML 2022) does it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from kernels.compression import codes
from kernels.compression.layout import GROUP, LANES
from kernels.methods.every_tensor import SMALLEST


class Coded:
    """A storage in few bits, which every node that saves it shares."""

    def __init__(self, flat: Tensor, bits: int) -> None:
        self.bits, self.dtype = bits, flat.dtype
        self.storage = StorageWeakRef(flat.untyped_storage())  # while it is held, no other storage gets the address
        self.codes = codes.encode(flat.view(-1, GROUP, LANES), bits)

    def flat(self) -> Tensor:
        """The storage again, approximate."""
        return codes.decode(self.codes, self.bits, self.dtype).flatten()


@contextmanager
def coded(module: nn.Module, bits: int) -> Iterator[None]:
    """While it is open, autograd saves codes in place of floating-point tensors that are no weights of `module`."""
    weights = {weight.untyped_storage()._cdata for weight in module.parameters()}
    known: WeakValueDictionary[tuple[int, int], Coded] = WeakValueDictionary()

    def pack(x: Tensor) -> Tensor | tuple[Coded, torch.Size, tuple[int, ...], int]:
        storage = x.untyped_storage()
        size = storage.nbytes() // x.element_size()
        few = prod(x.shape) < max(SMALLEST, size // 2)  # a part of it: a code of all would say too much
        fits = size % (GROUP * LANES) == 0 and x.is_floating_point() and not few
        if not fits or storage._cdata in weights:
            return x
        key = (storage._cdata, x._version)
        one = known.get(key)
        if one is None:
            one = known[key] = Coded(x.detach().as_strided((size,), (1,), 0), bits)
        return one, x.shape, x.stride(), x.storage_offset()

    def unpack(saved: Any) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        one, shape, strides, offset = saved
        return one.flat().as_strided(shape, strides, offset)

    hooks: Callable[..., Any] = torch.autograd.graph.saved_tensors_hooks
    with hooks(pack, unpack):
        yield
