"""How groups of elements lie in the memory of a tensor."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import SymInt, Tensor

from kernels.compression import private

DEFAULT_GROUP = 64  # elements that share a minimum and a step
GROUP_SIZES = (32, 64, 96, 128)  # to pick from, where units must fit into rows
LANES = 8  # where as many as a vector has do not fit


class GroupLayout(NamedTuple):
    """How a dense tensor is cut into groups.

    order: its dimensions by descending stride. static: how many of them, from the last, have a size that is known when
    the graph is compiled; they are cut into units. group: elements of a group. lanes: groups of a unit, interleaved in
    memory. filler: elements that pad the last unit.
    """

    order: tuple[int, ...]
    static: int
    group: int
    lanes: int
    filler: int

    def rows(self, x: Tensor) -> Tensor:
        """The tensor as [*lead, row], in memory order."""
        return x.permute(self.order).flatten(x.dim() - self.static)

    def of_rows(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """The inverse of `rows`; `sizes` are those of the static dimensions."""
        back = [self.order.index(dim) for dim in range(len(self.order))]
        return rows.unflatten(-1, tuple(sizes)).permute(back)

    def split(self, x: Tensor) -> Tensor:
        """The tensor as [*lead, units, group, lanes], in memory order, padded."""
        flat = self.rows(x)
        if self.filler:  # repeats of the last element, which widen no group
            flat = torch.cat([flat, flat[..., -1:].expand(*flat.shape[:-1], self.filler)], -1)
        return flat.unflatten(-1, (-1, self.group, self.lanes))

    def sizes(self, x: Tensor) -> list[int]:
        """Sizes of the `static` last dimensions of such a tensor, in memory order."""
        return [x.shape[dim] for dim in self.order[x.dim() - self.static :]]

    def join(self, units: Tensor, sizes: Sequence[int]) -> Tensor:
        """The inverse of `split`; `sizes` are those of the static dimensions."""
        flat = units.flatten(-3)
        if self.filler:
            flat = flat[..., : flat.shape[-1] - self.filler]
        return self.of_rows(flat, sizes)


def layout_of(value: Tensor, direct: bool = False) -> GroupLayout | str:
    """The layout of groups in a tensor, or why there is none. direct: for our own kernels on any device."""
    order = order_of(value)
    if order is None:
        return "its elements overlap or have gaps"
    static, row = 0, 1
    for dim in reversed(order):
        if isinstance(value.shape[dim], SymInt):
            break
        static, row = static + 1, row * value.shape[dim]
    vector = 1 if direct else private.vector(value.device)
    group, lanes = (DEFAULT_GROUP, vector) if static == value.dim() else _unit_of(row, vector)
    filler = -row % (group * lanes)
    if static < value.dim() and 2 * filler > row:  # codes would grow by more than half
        return f"its size changes, and the {row} elements in a row whose size does not are too few"
    return GroupLayout(order, static, group, lanes, filler)


def order_of(value: Tensor) -> tuple[int, ...] | None:
    """The dimensions by descending stride; None if elements overlap or there are gaps between them."""
    order = sorted(range(value.dim()), key=lambda dim: -hint(value.stride(dim)))
    expected: int | SymInt = 1
    for dim in reversed(order):
        if value.shape[dim] == 1:  # its stride is arbitrary
            continue
        if value.stride(dim) != expected:
            return None
        expected = expected * value.shape[dim]
    return tuple(order)


def _unit_of(row: int, vector: int) -> tuple[int, int]:
    """The group and lanes that pad a row least; of equal ones, the group nearest to the default, then the larger."""
    units = [(group, lanes) for lanes in (vector, LANES) for group in GROUP_SIZES]
    return min(units, key=lambda unit: (-row % (unit[0] * unit[1]), abs(unit[0] - DEFAULT_GROUP), -unit[0]))


def hint(size: int | SymInt) -> int:
    """A size; of a symbolic one, the value that the compiler saw first."""
    return int(size.node.hint if isinstance(size, SymInt) else size)
