"""Flat tensors piece by piece, so that intermediate results take little memory and stay in caches; and the entries of
vectors that belong to the groups of a piece."""

from collections.abc import Iterator, Sequence
from math import lcm

import torch
from torch import Tensor

from kernels.engine.planes import plane_bytes

# Elements of a piece. With fewer, calls take longer than the operations. With more, intermediate results neither fit
# into a cache of 1 MiB nor stay below the size that malloc returns to the system at once, to be mapped anew by pages.
_LEAST = 1 << 17
_A_THREAD = 1 << 16


def pieces(count: int, units: Sequence[int] = (), most: int = 0) -> Iterator[slice]:
    """Slices of `count` elements, which cut no byte of a bit plane, and a unit only if it is too large.

    most: elements of a piece; 0: as many as suit a CPU.
    """
    most = most or max(_LEAST, _A_THREAD * torch.get_num_threads())
    whole = max(size for unit in (1, *units) if (size := lcm(unit, 8)) <= most)
    length = most // whole * whole
    return (slice(start, min(start + length, count)) for start in range(0, count, length))


def bytes_of(piece: slice) -> slice:
    """The bytes of a piece in a bit plane."""
    return slice(piece.start // 8, plane_bytes(piece.stop))


class GroupEntries:
    """Vectors with an entry for each group of a flat tensor, as `reference_codes` lays it out, or with one entry."""

    def __init__(self, group_size: int, features: int, tokens: int, *vectors: Tensor) -> None:
        self._group_size, self._tokens, self._features = min(group_size, tokens), tokens, features
        groups = -(-tokens // self._group_size)
        self._single = all(len(vector) == 1 for vector in vectors)
        # [1, outer, groups, 1, features]; the entries repeat with period `outer`.
        self._vectors = [
            vector.view(1, -1, *((1, 1, 1) if len(vector) == 1 else (groups, 1, features))) for vector in vectors
        ]
        self._outer = max(vector.shape[1] for vector in self._vectors)
        self.units = self._outer * tokens * features, tokens * features, self._group_size * features, features

    def parts(self, values: Tensor, start: int) -> Iterator[tuple[Tensor, ...]]:
        """Views [..., group_size, features] of `values`, elements from `start` on, each with its entries."""
        if self._single:
            return iter([(values[:, None], *(vector.view(1, 1) for vector in self._vectors))])
        return self._cut(values, start, self._vectors, self.units)

    def _cut(
        self, values: Tensor, start: int, vectors: list[Tensor], units: Sequence[int]
    ) -> Iterator[tuple[Tensor, ...]]:
        """Whole units of the first size; the parts of units before and after them are cut by the next size."""
        count = len(values)
        if not units:
            yield (
                values[None],
                *(vector if len(vector) == 1 else vector[None, start : start + count] for vector in vectors),
            )
            return
        first, last = -(-start // units[0]), (start + count) // units[0]
        # If no unit ends within `values`, all of it counts as before.
        before, after = (first * units[0] - start, last * units[0] - start) if first <= last else (count, count)
        for low, high in ((0, before), (after, count)):
            if low < high:
                at, inside = divmod(start + low, units[0])
                yield from self._cut(
                    values[low:high], inside, [vector[at % len(vector)] for vector in vectors], units[1:]
                )
        if first < last:
            entries = [vector if len(vector) == 1 else vector[first:last] for vector in vectors]
            yield from self._grouped(values[before:after], entries, len(units))

    def _grouped(self, values: Tensor, vectors: list[Tensor], left: int) -> Iterator[tuple[Tensor, ...]]:
        """Whole units, of a size that `left` - 1 smaller sizes follow; a shorter last group comes separately."""
        full, rest = divmod(self._tokens, self._group_size)
        if left <= 2 or not rest:
            yield values.view(-1, *(self._outer, full, self._group_size, self._features)[4 - left :]), *vectors
            return
        values = values.view(-1, *(self._outer, self._tokens, self._features)[4 - left :])
        for first, groups, size in ((0, full, self._group_size), (full, 1, rest)):
            part = values.narrow(-2, first * self._group_size, groups * size).unflatten(-2, (groups, size))
            yield part, *(vector if vector.shape[-3] == 1 else vector.narrow(-3, first, groups) for vector in vectors)
