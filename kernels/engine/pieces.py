"""Flat tensors piece by piece, so that what is computed on the way takes little memory and stays in caches; and the
entries of vectors that go along a piece."""

from collections.abc import Iterator, Sequence
from math import lcm

import torch
from torch import Tensor

from kernels.engine.planes import plane_bytes

# Elements. Of fewer, calling the operations takes longer than they do. What they make of more fits neither into a cache
# of 1 MiB nor below what malloc gives back to the system at once, and is then touched anew page by page.
_LEAST = 1 << 17
_A_THREAD = 1 << 16


def pieces(count: int, units: Sequence[int] = ()) -> Iterator[slice]:
    """Slices of `count` elements: bytes of bit planes are not cut, and of the units only those too large."""
    most = max(_LEAST, _A_THREAD * torch.get_num_threads())
    whole = max(size for unit in (1, *units) if (size := lcm(unit, 8)) <= most)
    length = most // whole * whole
    return (slice(start, min(start + length, count)) for start in range(0, count, length))


def bytes_of(piece: slice) -> slice:
    """Where the bit planes of a piece are."""
    return slice(piece.start // 8, plane_bytes(piece.stop))


class Along:
    """Vectors that go along a flat tensor, laid out as `reference_codes` says; each of one length, or of one entry."""

    def __init__(self, run: int, wide: int, tokens: int, *vectors: Tensor) -> None:
        self._run, self._tokens, self._wide = min(run, tokens), tokens, wide
        groups = -(-tokens // self._run)
        self._single = all(len(one) == 1 for one in vectors)
        # All entries along `outer`, over and over: [1, outer, groups, 1, wide].
        self._vectors = [one.view(1, -1, *((1, 1, 1) if len(one) == 1 else (groups, 1, wide))) for one in vectors]
        self._outer = max(one.shape[1] for one in self._vectors)
        self.units = self._outer * tokens * wide, tokens * wide, self._run * wide, wide

    def parts(self, values: Tensor, start: int) -> Iterator[tuple[Tensor, ...]]:
        """Views of `values`, elements from `start` on, each [..., run, wide] and with the entries that go along it."""
        if self._single:
            return iter([(values[:, None], *(one.view(1, 1) for one in self._vectors))])
        return self._cut(values, start, self._vectors, self.units)

    def _cut(
        self, values: Tensor, start: int, vectors: list[Tensor], units: Sequence[int]
    ) -> Iterator[tuple[Tensor, ...]]:
        """The whole ones of the first unit; what is of one before and after them is cut by the next."""
        count = len(values)
        if not units:
            yield values[None], *(one if len(one) == 1 else one[None, start : start + count] for one in vectors)
            return
        first, last = -(-start // units[0]), (start + count) // units[0]
        # Within one unit there is no end of one: all comes before.
        before, after = (first * units[0] - start, last * units[0] - start) if first <= last else (count, count)
        for low, high in ((0, before), (after, count)):
            if low < high:
                at, inside = divmod(start + low, units[0])
                yield from self._cut(values[low:high], inside, [one[at % len(one)] for one in vectors], units[1:])
        if first < last:
            entries = [one if len(one) == 1 else one[first:last] for one in vectors]
            yield from self._grouped(values[before:after], entries, len(units))

    def _grouped(self, values: Tensor, vectors: list[Tensor], left: int) -> Iterator[tuple[Tensor, ...]]:
        """Whole ones of a unit, after which `left` - 1 smaller ones are left; the last group apart if it is shorter."""
        full, rest = divmod(self._tokens, self._run)
        if left <= 2 or not rest:
            yield values.view(-1, *(self._outer, full, self._run, self._wide)[4 - left :]), *vectors
            return
        values = values.view(-1, *(self._outer, self._tokens, self._wide)[4 - left :])
        for first, groups, run in ((0, full, self._run), (full, 1, rest)):
            part = values.narrow(-2, first * self._run, groups * run).unflatten(-2, (groups, run))
            yield part, *(one if one.shape[-3] == 1 else one.narrow(-3, first, groups) for one in vectors)
