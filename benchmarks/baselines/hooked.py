"""Activation compression by hooks as in GACT (ICML 2022): every tensor that autograd saves is encoded."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from kernels.compression import codes
from kernels.compression.layout import DEFAULT_GROUP
from kernels.eager.tensors import ViewGeometry, flat, key_of
from kernels.methods.every_tensor import SMALLEST


class EncodedStorage:
    """A storage that fills groups, in few bits, shared by every node that saves it."""

    def __init__(self, flat: Tensor, bits: int) -> None:
        self.bits, self.dtype = bits, flat.dtype
        self.storage = StorageWeakRef(flat.untyped_storage())  # while this is held, no other storage gets the address
        self.codes = codes.encode(flat.view(-1, DEFAULT_GROUP), bits)

    def flat(self) -> Tensor:
        """The decoded storage, flat."""
        return codes.decode(self.codes, self.bits, self.dtype).flatten()


@contextmanager
def saving_codes(module: nn.Module, bits: int) -> Iterator[None]:
    """A context in which autograd saves codes of floating-point tensors other than weights of `module`.

    Groups are laid out as in compiled code. Whole are tensors that do not fill groups, and small parts of a storage:
    a code of all of it would be too large.
    """
    weights = {weight.untyped_storage()._cdata for weight in module.parameters()}
    known: WeakValueDictionary[tuple[Any, ...], EncodedStorage] = WeakValueDictionary()

    def pack(x: Tensor) -> Tensor | tuple[EncodedStorage, ViewGeometry]:
        storage = x.untyped_storage()
        size = storage.nbytes() // x.element_size()
        few = prod(x.shape) < max(SMALLEST, size // 2)
        fits = size % DEFAULT_GROUP == 0 and x.is_floating_point() and not few
        if not fits or storage._cdata in weights:
            return x
        key = key_of(x)
        encoded = known.get(key)
        if encoded is None:
            encoded = known[key] = EncodedStorage(flat(x), bits)
        return encoded, ViewGeometry.of(x)

    def unpack(saved: Tensor | tuple[EncodedStorage, ViewGeometry]) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        encoded, geometry = saved
        return encoded.flat().as_strided(*geometry)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
