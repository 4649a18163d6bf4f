"""Activation compression by hooks as in GACT (ICML 2022): every tensor that autograd saves is encoded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from kernels.compression import codes
from kernels.compression.layout import DEFAULT_GROUP, LANES
from kernels.methods.every_tensor import SMALLEST


class EncodedStorage:
    """A storage in few bits, shared by every node that saves it."""

    def __init__(self, flat: Tensor, bits: int) -> None:
        self.bits, self.dtype = bits, flat.dtype
        self.storage = StorageWeakRef(flat.untyped_storage())  # while this is held, no other storage gets the address
        self.codes = codes.encode(flat.view(-1, DEFAULT_GROUP, LANES), bits)

    def flat(self) -> Tensor:
        """The decoded storage, flat."""
        return codes.decode(self.codes, self.bits, self.dtype).flatten()


@contextmanager
def saving_codes(module: nn.Module, bits: int) -> Iterator[None]:
    """A context in which autograd saves codes of floating-point tensors other than weights of `module`."""
    weights = {weight.untyped_storage()._cdata for weight in module.parameters()}
    known: WeakValueDictionary[tuple[int, int], EncodedStorage] = WeakValueDictionary()

    def pack(x: Tensor) -> Tensor | tuple[EncodedStorage, torch.Size, tuple[int, ...], int]:
        storage = x.untyped_storage()
        size = storage.nbytes() // x.element_size()
        few = prod(x.shape) < max(SMALLEST, size // 2)  # a small part of its storage: a code of all would be too large
        fits = size % (DEFAULT_GROUP * LANES) == 0 and x.is_floating_point() and not few
        if not fits or storage._cdata in weights:
            return x
        key = (storage._cdata, x._version)
        encoded = known.get(key)
        if encoded is None:
            encoded = known[key] = EncodedStorage(x.detach().as_strided((size,), (1,), 0), bits)
        return encoded, x.shape, x.stride(), x.storage_offset()

    def unpack(saved: Any) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        encoded, shape, strides, offset = saved
        return encoded.flat().as_strided(shape, strides, offset)

    hooks: Callable[..., Any] = torch.autograd.graph.saved_tensors_hooks
    with hooks(pack, unpack):
        yield
