"""Flat tensors piece by piece, so that intermediate results take little memory and stay in caches; and the entries of
vectors that belong to the groups of a piece."""

from collections.abc import Iterator, Sequence
from math import lcm

import torch
from torch import Tensor

from actfit.kernels.engine.planes import plane_bytes

# Elements of a piece. With fewer, calls take longer than the operations. With more, intermediate results neither fit
# into a cache of 1 MiB nor stay below the size that malloc returns to the system at once, to be mapped anew by pages.
_LEAST = 1 << 17
_A_THREAD = 1 << 16


def pieces(count: int, units: Sequence[int] = ()) -> Iterator[slice]:
    """Slices of `count` elements, which cut no byte of a bit plane, and a unit only if it is too large."""
    most = max(_LEAST, _A_THREAD * torch.get_num_threads())
    whole = max(size for unit in (1, *units) if (size := lcm(unit, 8)) <= most)
    length = most // whole * whole
    return (slice(start, min(start + length, count)) for start in range(0, count, length))


def bytes_of(piece: slice) -> slice:
    """The bytes of a piece in a bit plane."""
    return slice(piece.start // 8, plane_bytes(piece.stop))


class GroupEntries:
    """Vectors of one length, of which element i of a flat tensor takes entry (i // group_size) % length."""

    def __init__(self, group_size: int, *vectors: Tensor) -> None:
        self._vectors = vectors
        self.units = max(map(len, vectors)) * group_size, group_size

    def parts(self, values: Tensor, start: int) -> Iterator[tuple[Tensor, ...]]:
        """Views [..., groups, elements] of `values`, which begin at `start`, each with its entries [1, groups, 1]."""
        if len(self._vectors[0]) == 1:
            return iter([self._together(values, self._vectors)])
        return self._cut(values, start, self._vectors, self.units)

    def _cut(
        self, values: Tensor, start: int, vectors: Sequence[Tensor], units: Sequence[int]
    ) -> Iterator[tuple[Tensor, ...]]:
        """All entries' groups, as often as they fit; those before and after them, group by group; parts of a group."""
        if not units:
            yield self._together(values, vectors)
            return
        first, last = -(-start // units[0]), (start + len(values)) // units[0]
        # If no unit ends within `values`, all of it counts as before.
        before, after = (
            (first * units[0] - start, last * units[0] - start) if first <= last else (len(values), len(values))
        )
        for low, high in ((0, before), (after, len(values))):
            if low < high:
                at, inside = divmod(start + low, units[0])
                entries = vectors if len(units) == 2 else [vector[at : at + 1] for vector in vectors]
                yield from self._cut(values[low:high], inside, entries, units[1:])
        if first < last:
            entries = vectors if len(units) == 2 else [vector[first:last] for vector in vectors]
            yield self._together(values[before:after].view(-1, len(entries[0]), self.units[1]), entries)

    @staticmethod
    def _together(values: Tensor, vectors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return values if values.dim() > 1 else values[None, None], *(vector[None, :, None] for vector in vectors)
