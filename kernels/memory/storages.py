"""Tensors inside nested values, and the storages of tensors."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from actfit.kernels import private


def storages(tensor: Tensor) -> Iterator[torch.UntypedStorage]:
    """The storages of a tensor, or of the inner tensors of a sparse one or a wrapper such as DTensor."""
    if type(tensor) is not Tensor and hasattr(tensor, "__tensor_flatten__") and hasattr(tensor, "__tensor_unflatten__"):
        # It is made of inner ones, as a DTensor is.
        for name in tensor.__tensor_flatten__()[0]:
            inner = getattr(tensor, name)
            if isinstance(inner, Tensor):  # a DTensor has its mesh there too
                yield from storages(inner)
    elif tensor.layout == torch.strided:
        yield tensor.untyped_storage()
    elif tensor.layout == torch.sparse_coo:
        yield from (part.untyped_storage() for part in (tensor._indices(), tensor._values()))
    elif tensor.layout == torch.sparse_csr:
        yield from (part.untyped_storage() for part in (tensor.crow_indices(), tensor.col_indices(), tensor.values()))


def tensors(value: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """All tensors within lists, mappings, and objects' attributes."""
    seen = set() if seen is None else seen
    for leaf in private.tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield leaf
        elif isinstance(leaf, Mapping):  # a kind that tree_leaves does not take apart
            yield from tensors(dict(leaf), seen)
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, type | nn.Module) and id(leaf) not in seen:
            seen.add(id(leaf))
            yield from tensors(vars(leaf), seen)


def addresses(values: Any) -> set[int]:
    """Keys of the storages of all tensors in `values`, unique as long as these are alive."""
    return {storage._cdata for tensor in tensors(values) for storage in storages(tensor)}


def bytes_of(values: Iterable[Tensor]) -> int:
    """Bytes of the storages of tensors, each once."""
    return sum({storage._cdata: storage.nbytes() for x in values for storage in storages(x)}.values())


def operand_storages(value: Any) -> Iterator[torch.UntypedStorage]:
    """The storages of the tensors in an operation's arguments or result."""
    for leaf in private.tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield from storages(leaf)
