"""Tensors and their storages."""

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.methods.every_tensor import MAX_GROUP, MAX_GROUP_ACROSS, MIN_GROUP
from kernels.torch_state import is_plain_type


class ViewGeometry(NamedTuple):
    """Size, strides and offset of a tensor in its storage: arguments of `as_strided`."""

    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    @staticmethod
    def of(x: Tensor) -> "ViewGeometry":
        """The geometry of a tensor; of a part of a storage, the geometry of the part copied out."""
        if is_part(x):
            return ViewGeometry(x.size(), tuple(prod(x.shape[dim + 1 :]) for dim in range(x.dim())), 0)
        return ViewGeometry(x.size(), x.stride(), int(x.storage_offset()))

    def numel(self) -> int:
        """How many elements it has."""
        return prod(self.size)

    def is_contiguous(self) -> bool:
        """Whether its elements follow one another."""
        return _follow(zip(reversed(self.stride), reversed(self.size), strict=True))

    def is_packed(self) -> bool:
        """Whether its elements follow one another from the storage's first on, in whatever order."""
        return self.offset == 0 and _follow(sorted(zip(self.stride, self.size, strict=True)))


def _follow(dims: Iterable[tuple[int, int]]) -> bool:
    """Whether elements of these strides and lengths follow one another, the innermost dimension first."""
    size = 1
    for stride, length in dims:
        if length != 1 and stride != size:
            return False
        size *= length
    return True


def tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among arguments, and in lists of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (part for part in value if isinstance(part, Tensor))


def is_plain(x: Tensor) -> bool:
    """Whether a tensor is fully described by its storage, geometry and version.

    Wrappers, sparse, quantized, lazily conjugated and inference tensors are not.
    """
    plain = is_plain_type(x) and x.layout == torch.strided and not x.is_inference()
    return plain and not (x.is_quantized or x.is_conj() or x.is_neg())


def version_of(x: Tensor) -> int:
    """How often a tensor was changed in place; 0 for inference tensors, which do not count."""
    return 0 if x.is_inference() else x._version


def storage_of(x: Tensor) -> int:
    """An identifier of its storage, valid while the storage lives."""
    return int(x.untyped_storage()._cdata)


def is_dense(x: Tensor) -> bool:
    """Whether its elements fill its storage, each once."""
    geometry = ViewGeometry(x.size(), x.stride(), int(x.storage_offset()))
    return geometry.is_packed() and x.numel() * x.element_size() == x.untyped_storage().nbytes()


def covers(x: Tensor) -> bool:
    """Whether its elements are all of its storage, possibly expanded."""
    return x.numel() > 0 and is_dense(x[tuple(0 if stride == 0 else slice(None) for stride in x.stride())])


def is_part(x: Tensor) -> bool:
    """Whether it is less than half of its storage, so that the rest need not be saved."""
    return 2 * x.numel() * x.element_size() < x.untyped_storage().nbytes() and 0 not in x.stride()


def key_of(x: Tensor) -> tuple[Any, ...]:
    """A key for the contents of its storage, or of the part, at this version and read as its type."""
    storage = x.untyped_storage()
    key = storage._cdata, x._version, x.dtype
    if 2 * x.numel() * x.element_size() >= storage.nbytes():  # most often
        return key
    return (*key, x.size(), x.stride(), x.storage_offset()) if is_part(x) else key


def flat(x: Tensor) -> Tensor:
    """The contents of its storage, or of the part, in memory order."""
    if is_part(x):
        return x.detach().contiguous().view(-1)
    return x.detach().as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)


def group_of(x: Tensor) -> int:
    """How many neighbours in memory share a minimum and a step: if possible, within one channel or token.

    A norm scales the errors of a row or channel as it scales the row, and neighbouring rows may be much larger: the
    first row of an image starts at zero, and a 7 x 7 channel may be dead. So groups within a channel may be larger than
    groups that span several, as of 3 x 3 channels.
    """
    geometry, row, most = ViewGeometry.of(x), 1, MAX_GROUP
    for stride, length, dim in sorted(zip(geometry.stride, geometry.size, range(x.dim()), strict=True)):
        if length == 1:
            continue
        if stride != row or (row >= MIN_GROUP and dim < 2):
            break
        if row > 1 and dim < 2:
            most = MAX_GROUP_ACROSS
        row *= length
    return next((size for size in range(most, MIN_GROUP - 1, -1) if row % size == 0), most)


def squares(decoded: Tensor, exact: Tensor) -> Tensor:
    """||x' - x||² and ||x||², a tensor of two numbers of at least float32."""
    wide = torch.promote_types(exact.dtype, torch.float32)
    x = exact.to(wide)
    return torch.stack([(decoded.to(wide) - x).square().sum(), x.square().sum()])


def relative_error(squares: Tensor) -> float:
    """||x' - x|| / ||x|| of the two squares; 0 if x is 0."""
    off, whole = squares.tolist()
    return (off / whole) ** 0.5 if whole else 0.0
