"""How groups of elements lie in the memory of a tensor."""

from typing import NamedTuple

from torch import SymInt, Tensor

DEFAULT_GROUP = 64  # elements that share a minimum and a step
GROUP_SIZES = (DEFAULT_GROUP, 80, 96, 112, 48, 32)  # the first that fills rows is taken; in multiples of 16


class GroupLayout(NamedTuple):
    """How a dense tensor is cut into groups.

    order: its dimensions by descending stride. group: elements of a group, which are neighbours in memory.
    """

    order: tuple[int, ...]
    group: int


def layout_of(value: Tensor) -> GroupLayout | str:
    """The layout of groups in a tensor, or why there is none.

    Groups lie in one token or channel, if any size of a group allows it: a norm scales the errors of a row or channel
    as it scales the row, and the rows beside it may be much larger. So rows are those of as few dimensions as groups
    can fill, from the innermost on, up to one whose size changes.
    """
    order = order_of(value)
    if order is None:
        return "its elements overlap or have gaps"
    row = 1
    for dim in reversed(order):
        if isinstance(value.shape[dim], SymInt):
            break
        row *= value.shape[dim]
        for group in GROUP_SIZES:
            if row and row % group == 0:
                return GroupLayout(order, group)
    return GroupLayout(order, DEFAULT_GROUP)


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
