"""Activation compression by hooks as in GACT (ICML 2022): every tensor that autograd saves is encoded."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from actfit.kernels.engine import ops
from actfit.kernels.methods.every_tensor import SMALLEST

GROUP = 64  # neighbours in memory that share a minimum and a step


class EncodedStorage:
    """A storage in few bits, shared by every node that saves it."""

    def __init__(self, flat: Tensor, bits: int) -> None:
        self.count, self.dtype = flat.numel(), flat.dtype
        self.storage = StorageWeakRef(flat.untyped_storage())  # while this is held, no other storage gets the address
        self.codes = ops.encode_groups(flat, None, GROUP, bits)

    def flat(self) -> Tensor:
        """The decoded storage, flat."""
        return ops.decode_groups(*self.codes, GROUP, self.count, self.dtype)


Saved = Tensor | tuple[EncodedStorage, tuple[Any, ...]]  # the geometry: size, strides and offset


@contextmanager
def saving_codes(module: nn.Module, bits: int) -> Iterator[None]:
    """A context in which autograd saves codes of floating-point tensors other than weights of `module`.

    Whole are small tensors, and small parts of a storage: a code of all of it would be too large.
    """
    weights = {weight.untyped_storage()._cdata for weight in module.parameters()}
    known: WeakValueDictionary[tuple[Any, ...], EncodedStorage] = WeakValueDictionary()

    def pack(x: Tensor) -> Saved:
        storage = x.untyped_storage()
        size = storage.nbytes() // x.element_size()
        few = x.numel() < max(SMALLEST, size // 2)
        if few or not x.is_floating_point() or storage._cdata in weights:
            return x
        key = storage._cdata, x._version, x.dtype
        encoded = known.get(key)
        if encoded is None:
            encoded = known[key] = EncodedStorage(x.detach().as_strided((size,), (1,), 0), bits)
        return encoded, (x.size(), x.stride(), x.storage_offset())

    def unpack(saved: Saved) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        encoded, geometry = saved
        return encoded.flat().as_strided(*geometry)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
