"""Activation compression by hooks as in GACT (ICML 2022): every tensor that autograd saves is encoded."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
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
    """A storage in few bits, shared by every node that saves it; or a part of one, copied out of that of `owner`."""

    def __init__(self, flat: Tensor, bits: int, group: int = DEFAULT_GROUP, owner: Tensor | None = None) -> None:
        self.bits, self.dtype, self.count = bits, flat.dtype, flat.numel()
        storage = (flat if owner is None else owner).untyped_storage()
        self.storage = StorageWeakRef(storage)  # while this is held, no other storage gets the address
        filler = -self.count % group  # repeats of the last element, which widen no group
        padded = torch.cat([flat, flat[-1:].expand(filler)]) if filler else flat
        self.codes = codes.encode(padded.view(-1, group), bits)

    def flat(self) -> Tensor:
        """The decoded storage, flat."""
        return codes.decode(self.codes, self.bits, self.dtype).flatten()[: self.count]


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

    with _hooks(pack):
        yield


@contextmanager
def saving_neighbours(module: nn.Module, inputs: Iterable[Tensor], bits: int, group: int) -> Iterator[None]:
    """`saving_codes` that keeps less: a stronger rival.

    Groups are of neighbours, as within a row. What does not fill groups is padded, and a part of a storage is encoded
    by itself. Inputs are alive anyhow, and have no codes.
    """
    alive = {tensor.untyped_storage()._cdata for tensor in chain(module.parameters(), inputs)}
    known: WeakValueDictionary[tuple[Any, ...], EncodedStorage] = WeakValueDictionary()

    def pack(x: Tensor) -> Tensor | tuple[EncodedStorage, ViewGeometry]:
        storage = x.untyped_storage()
        size = storage.nbytes() // x.element_size()
        if min(x.numel(), size) < SMALLEST or not x.is_floating_point() or storage._cdata in alive:
            return x
        key = key_of(x)
        encoded = known.get(key)
        if encoded is None:
            encoded = known[key] = EncodedStorage(flat(x), bits, group, owner=x)
        return encoded, ViewGeometry.of(x)

    with _hooks(pack):
        yield


def _hooks(pack: Callable[[Tensor], Any]) -> Any:
    def unpack(saved: Any) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        encoded, geometry = saved
        return encoded.flat().as_strided(*geometry)

    hooks: Callable[..., Any] = torch.autograd.graph.saved_tensors_hooks
    return hooks(pack, unpack)
