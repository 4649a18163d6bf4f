"""Element-wise operations on decoded tensors, in the shape in which their codes lie: on a CPU.

Inductor's C++ decodes with vectors only in loops over the parts of a code. So a decoded tensor is written to memory
in these loops and read in others, which takes as long as a derivative does. Element-wise operations can work in the
shape of the parts as well: then their results are written in place of the decoded tensor, mostly for a product.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from operator import getitem

import torch
from torch import SymInt, Tensor, fx

from actfit.kernels import private
from actfit.kernels.compression.layout import order_of
from actfit.kernels.compression.nodes import (
    WAITS_BY,
    call,
    is_pointwise,
    is_product,
    is_pure,
    is_view,
    origin,
    packet_of,
)
from actfit.kernels.compression.repeating import Computations

aten = torch.ops.aten
SAME_MEMORY = (
    aten.view,
    aten._unsafe_view,
    aten.permute,
    aten.transpose,
    aten.t,
    aten.unsqueeze,
    aten.squeeze,
    aten.alias,
)
KEEPING_ORDER = (None, torch.preserve_format, torch.contiguous_format)  # formats for any number of dimensions


def work_in_parts(graph: fx.Graph, decoded: dict[fx.Node, fx.Node]) -> None:
    """Compute what is computed element by element of decoded tensors of the backward graph in their parts' shape.

    Not where sizes change, or the last group is padded and has more elements; nor a result that neither a product nor
    the output reads, for Inductor may fuse its readers.

    Parameters
    ----------
    graph
        Changed in place.
    decoded
        Tensors, and the parts [groups, *parts of a group] that each is joined from.
    """
    alike: dict[tuple[int, ...], dict[fx.Node, fx.Node]] = {}
    for node, parts in decoded.items():
        if _is_static(node.meta["val"]):
            alike.setdefault(tuple(parts.meta["val"].shape), {})[node] = parts
    for shape, parts_of in alike.items():
        _Region(graph, shape, parts_of).move()


class _Region:
    """Element-wise operations on decoded tensors and on others of as many elements, all dense.

    Elements of two tensors belong together if they are at the same place in memory: then views of all of it have the
    same parts.
    """

    def __init__(self, graph: fx.Graph, shape: Sequence[int], decoded: dict[fx.Node, fx.Node]) -> None:
        self.graph, self.shape, self.count, self.decoded = graph, shape, prod(shape), decoded
        self.inside: dict[fx.Node, None] = {}  # the decoded nodes, and the operations to move, in order
        self.needless: dict[fx.Node, fx.Node] = {}  # by WAITS_BY, nodes that need not wait: loops are the same
        self.as_they_are: set[fx.Node] = set()  # parts of decoded tensors that are written in any case
        self.parts: dict[fx.Node, fx.Node] = {}
        self.computations = Computations(graph)  # of parts that are not in memory
        self.written: dict[fx.Node, fx.Node] = {}  # parts in memory: a result and its views share them
        self._find()

    def _find(self) -> None:
        banned: set[fx.Node] = set()
        while True:
            self.inside, last = {}, self.inside
            for node in self.graph.nodes:
                if node in self.decoded or (node not in banned and self._fits(node)):
                    self.inside[node] = None
            self.needless = {
                wait.meta[WAITS_BY]: wait
                for node, parts in self.decoded.items()
                if self.inside.keys() >= node.users.keys()
                for wait in _waiting(parts)
            }
            banned |= {node for node in self.inside if node not in self.decoded and not self._is_written(node)}
            if self.inside == last:
                return

    def move(self) -> None:
        """Replace the region by operations on parts."""
        if self.decoded.keys() >= self.inside.keys():
            return
        self._stop_waiting()
        for node in self.inside:
            with self.graph.inserting_before(node):
                self.parts[node] = self._in_parts(node)
                outside = self._outside(node)
                if node in self.decoded:
                    if outside:
                        self.as_they_are.add(self.parts[node])
                elif self._is_read_outside(node) and self.parts[node] not in self.as_they_are:
                    self.parts[node] = self._in_memory(self.parts[node])  # what is written is not computed again
                    if outside:
                        node.replace_all_uses_with(self._in_own_shape(node), outside.__contains__)
            for user in self.needless.keys() & node.users.keys():
                self.needless[user].replace_all_uses_with(self.needless[user].args[0])
        self._erase_unused([*self.needless.values(), *self.inside, *self.parts.values()])

    def _stop_waiting(self) -> None:
        """Decode without waiting for a tensor that is read by the same loops in any case.

        As waiting reads its first element, Inductor would not write the result of such a loop in its place.
        """
        for node, parts in self.decoded.items():
            for wait in _waiting(parts):
                if self._all_read(_read(wait.meta[WAITS_BY]), node):
                    wait.replace_all_uses_with(wait.args[0])

    def _all_read(self, tensor: fx.Node, node: fx.Node) -> bool:
        """Whether `tensor` is read for all that is computed of a node inside and has readers outside."""
        computed, reading = {node}, set()
        for inner in self.inside:
            inputs = inner.all_input_nodes
            if any(argument in reading or _read(argument) is tensor for argument in inputs):
                reading.add(inner)
            elif not computed.isdisjoint(inputs):
                computed.add(inner)
        return all(user in self.inside for made in computed for user in made.users)

    def _fits(self, node: fx.Node) -> bool:
        """Whether it is a view of a node inside, or works element by element on such nodes and tensors in memory."""
        if self.inside.keys().isdisjoint(node.all_input_nodes) or (order := self._order(node)) is None:
            return False
        if packet_of(node) in SAME_MEMORY:
            return bool(node.meta["val"].dtype == node.all_input_nodes[0].meta["val"].dtype)
        tensors = [argument for argument in node.all_input_nodes if _has_dimensions(argument)]
        return (
            is_pointwise(node)
            and is_pure(node)
            and node.kwargs.get("memory_format") in KEEPING_ORDER
            and all(argument in self.inside or _is_ready(argument) for argument in tensors)
            and all(self._order(argument) == order for argument in tensors)
        )

    def _order(self, node: fx.Node) -> tuple[int, ...] | None:
        """The dimensions of a dense tensor of `count` elements by descending stride."""
        value = node.meta.get("val")
        is_such = isinstance(value, Tensor) and _is_static(value) and value.numel() == self.count
        return order_of(value) if is_such else None

    def _is_written(self, node: fx.Node) -> bool:
        """Whether nothing outside reads it, or something that needs it, or a view of it, in memory."""
        outside = self._outside(node)
        return not outside or any(map(_needs_memory, [*outside, *filter(is_view, node.users)]))

    def _is_read_outside(self, node: fx.Node) -> bool:
        """Whether it, or a view of it inside, has a reader outside."""
        views = [user for user in node.users if user in self.inside and is_view(user)]
        return bool(self._outside(node)) or any(map(self._is_read_outside, views))

    def _outside(self, node: fx.Node) -> list[fx.Node]:
        return [user for user in node.users if user not in self.inside and user not in self.needless]

    def _in_parts(self, node: fx.Node) -> fx.Node:
        """The counterpart of a node inside, in the shape of the parts."""
        if node in self.decoded:
            return self.decoded[node]
        if packet_of(node) in SAME_MEMORY:
            return self.parts[node.all_input_nodes[0]]
        for argument in filter(_has_dimensions, node.all_input_nodes):
            if argument not in self.parts:
                in_memory_order = self._permuted(argument, self._order(argument) or ())
                self.parts[argument] = call(self.graph, aten.view.default, in_memory_order, self.shape)
                self.computations.read(self.parts[argument])
        own = {
            argument: self._for_one_operation(argument) if argument in self.parts else argument
            for argument in node.all_input_nodes
        }
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), own.__getitem__)
        moved = call(self.graph, node.target, *args, **kwargs)
        moved.meta |= origin(node)
        return moved

    def _for_one_operation(self, node: fx.Node) -> fx.Node:
        """The parts of a node for one of its readers."""
        return self.parts[node] if self._is_read_once(node) else self.computations.for_one_operation(self.parts[node])

    def _is_read_once(self, node: fx.Node) -> bool:
        """Whether one operation alone reads it, or any view of the same memory."""
        is_same = node in self.inside and packet_of(node) in SAME_MEMORY
        return len(node.users) == 1 and (not is_same or self._is_read_once(node.all_input_nodes[0]))

    def _in_memory(self, parts: fx.Node) -> fx.Node:
        if parts not in self.written:
            kept = call(self.graph, private.force_stride_order, parts, parts.meta["val"].stride())
            self.written |= {parts: kept, kept: kept}
            self.computations.read(kept)
        return self.written[parts]

    def _in_own_shape(self, node: fx.Node) -> fx.Node:
        """A result that is written, in the shape of the node inside."""
        shape, order = node.meta["val"].shape, self._order(node) or ()
        rows = call(self.graph, aten.view.default, self.parts[node], [shape[dim] for dim in order])
        return self._permuted(rows, [order.index(dim) for dim in range(len(order))])

    def _permuted(self, node: fx.Node, order: Sequence[int]) -> fx.Node:
        return node if list(order) == sorted(order) else call(self.graph, aten.permute.default, node, order)

    def _erase_unused(self, nodes: Iterable[fx.Node]) -> None:
        """Erase those of the nodes that nothing uses, and what only they were made of."""
        todo, erased = list(nodes), set()
        while todo:
            node = todo.pop()
            if not node.users and node.op == "call_function" and node not in erased:
                todo += node.all_input_nodes
                self.graph.erase_node(node)
                erased.add(node)


def _is_static(value: Tensor) -> bool:
    return not any(isinstance(size, SymInt) for size in (*value.shape, *value.stride()))


def _has_dimensions(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dim() > 0


def _is_ready(node: fx.Node) -> bool:
    """Whether what is read for it is an input, a product's result, or one number, which is never written."""
    node = _read(node)
    source = node.all_input_nodes[0] if node.target is getitem else node
    return node.op == "placeholder" or is_product(source) or packet_of(node) is aten.full


def _read(node: fx.Node) -> fx.Node:
    """The tensor that is read for a node: what it is a view of, or converts to another type; or itself."""
    while is_view(node) or packet_of(node) is torch.ops.prims.convert_element_type:
        node = node.all_input_nodes[0]
    return node


def _needs_memory(user: fx.Node) -> bool:
    """Whether it, or a user of it as a view, is a product or the output."""
    if is_view(user):
        return any(map(_needs_memory, user.users))
    return user.op == "output" or is_product(user)


def _waiting(parts: fx.Node) -> Iterator[fx.Node]:
    """The nodes that were made to wait, of those that parts are decoded by."""
    todo = [parts]
    while todo:
        node = todo.pop()
        if WAITS_BY in node.meta:
            yield node
            todo.append(node.all_input_nodes[0])
        elif node.op == "call_function":
            todo += node.all_input_nodes
