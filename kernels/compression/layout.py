"""How groups of elements lie in the memory of a tensor."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import SymInt, Tensor

DEFAULT_GROUP = 64  # elements that share a minimum and a step
GROUP_SIZES = (DEFAULT_GROUP, 80, 96, 112, 48, 32)  # the first that fills rows is taken; in multiples of 16


class GroupLayout(NamedTuple):
    """How a dense tensor is cut into groups.

    order: its dimensions by descending stride. static: how many of them, from the last, have a size that is known when
    the graph is compiled; they are cut into groups. group: elements of a group, which are neighbours. filler: elements
    that pad the last group.
    """

    order: tuple[int, ...]
    static: int
    group: int
    filler: int

    def rows(self, x: Tensor) -> Tensor:
        """The tensor as [*lead, row], in memory order."""
        return x.permute(self.order).flatten(x.dim() - self.static)

    def of_rows(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """The inverse of `rows`; `sizes` are those of the static dimensions."""
        back = [self.order.index(dim) for dim in range(len(self.order))]
        return rows.unflatten(-1, tuple(sizes)).permute(back)

    def split(self, x: Tensor) -> Tensor:
        """The tensor as [*lead, groups, group], in memory order, padded."""
        flat = self.rows(x)
        if self.filler:  # repeats of the last element, which widen no group
            flat = torch.cat([flat, flat[..., -1:].expand(*flat.shape[:-1], self.filler)], -1)
        return flat.unflatten(-1, (-1, self.group))

    def sizes(self, x: Tensor) -> list[int]:
        """Sizes of the `static` last dimensions of such a tensor, in memory order."""
        return [x.shape[dim] for dim in self.order[x.dim() - self.static :]]

    def join(self, groups: Tensor, sizes: Sequence[int]) -> Tensor:
        """The inverse of `split`; `sizes` are those of the static dimensions."""
        flat = groups.flatten(-2)
        if self.filler:
            flat = flat[..., : flat.shape[-1] - self.filler]
        return self.of_rows(flat, sizes)


def layout_of(value: Tensor) -> GroupLayout | str:
    """The layout of groups in a tensor, or why there is none.

    Groups lie in one token or channel, if any size of a group allows it: a norm scales the errors of a row or channel
    as it scales the row, and the rows beside it may be much larger. So rows are those of as few dimensions as groups
    can fill, from the innermost on.
    """
    order = order_of(value)
    if order is None:
        return "its elements overlap or have gaps"
    static, row, fitting = 0, 1, list[int]()
    for dim in reversed(order):
        if isinstance(value.shape[dim], SymInt):
            break
        static, row = static + 1, row * value.shape[dim]
        fitting = fitting or [group for group in GROUP_SIZES if row and row % group == 0]
    if static == value.dim():
        group = (fitting or GROUP_SIZES)[0]
    else:
        group = fitting[0] if fitting else min(GROUP_SIZES, key=lambda group: -row % group)
    filler = -row % group
    if static < value.dim() and 2 * filler > row:  # codes would grow by more than half
        return f"its size changes, and the {row} elements in a row whose size does not are too few"
    return GroupLayout(order, static, group, filler)


def order_of(value: Tensor) -> tuple[int, ...] | None:
    """The dimensions by descending stride; None if elements overlap, there are gaps between them, or it is unknown."""
    if depends_on_data(value):
        return None
    order = sorted(range(value.dim()), key=lambda dim: -hint(value.stride(dim)))
    expected: int | SymInt = 1
    for dim in reversed(order):
        if value.shape[dim] == 1:  # its stride is arbitrary
            continue
        if value.stride(dim) != expected:
            return None
        expected = expected * value.shape[dim]
    return tuple(order)


def hint(size: int | SymInt) -> int:
    """A size; of a symbolic one, the value that the compiler saw first; 0 if it depends on data."""
    return int((size.node.hint or 0) if isinstance(size, SymInt) else size)


def depends_on_data(value: Tensor) -> bool:
    """Whether a size or stride is known only when the graph runs: no comparison with it can be decided."""
    return any(isinstance(size, SymInt) and size.node.hint is None for size in (*value.shape, *value.stride()))
