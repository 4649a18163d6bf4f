"""Where backward decodes: in each stretch, from one product to the next, anew, with all that follows from it.

A value that is decoded once, or computed once from what is decoded, and used on both sides of a product would be held
whole while the product runs. So each stretch has a copy of its own, of the codes' readers and of the element-wise
operations that only what crosses goes into: Inductor fuses them with their use.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from kernels.compression import forms
from kernels.compression.inlining import inline
from kernels.compression.nodes import is_drawn, is_product, packet_of
from kernels.compression.places import hint

aten = torch.ops.aten
MOVING = (aten._unsafe_view, aten.cat)  # operations that compute nothing, beside views


@dataclass(frozen=True)
class Reader:
    """How a placeholder of the backward graph is decoded: from which placeholders, in which operations."""

    codes: list[fx.Node]
    decoding: fx.GraphModule


def decode_where_used(graph: fx.Graph, readers: dict[fx.Node, Reader], crossing: set[fx.Node]) -> None:
    """Replace placeholders of the backward graph by what is decoded in each stretch; they are erased.

    Parameters
    ----------
    readers
        Of what is coded.
    crossing
        The placeholders of all that crosses, coded or not; the others are gradients.
    """
    if not readers:
        return
    changed = {one for node in graph.nodes if _is_mutable(node) for one in node.all_input_nodes}
    again = _computed_again(graph, set(readers), crossing - changed)
    if not changed:
        _move_results(graph, again)
    copies = _Copies(graph, readers, again)
    for user in list(graph.nodes):
        if user not in again:
            given = user.all_input_nodes
            others = [node for node in given if node not in readers and node not in again]
            for node in given:
                if node in readers or node in again:
                    user.replace_input_with(node, copies.of(node, user, others))
            copies.pass_by(user)
    for node in reversed([*readers, *again]):
        graph.erase_node(node)


def _computed_again(graph: fx.Graph, coded: set[fx.Node], crossing: set[fx.Node]) -> dict[fx.Node, None]:
    """Large results of element-wise operations that only what crosses goes into, of it something coded; in order."""
    again: dict[fx.Node, None] = {}
    for node in graph.nodes:
        inputs = node.all_input_nodes
        from_codes = any(one in coded or one in again for one in inputs)
        if from_codes and _may_repeat(node) and all(one in crossing or one in again for one in inputs):
            again[node] = None
    return again


def _may_repeat(node: fx.Node) -> bool:
    """Whether it is a view or an element-wise operation with a large result."""
    value = node.meta.get("val")
    is_large = isinstance(value, Tensor) and hint(value.numel()) >= forms.SMALLEST
    if node.op != "call_function" or not is_large or not _is_pure(node):
        return False
    return _is_view(node) or packet_of(node) in MOVING or torch.Tag.pointwise in getattr(node.target, "tags", ())


def _move_results(graph: fx.Graph, again: dict[fx.Node, None]) -> None:
    """Put what only the output uses, gradients of weights, right after the gradient that goes into it.

    Autograd has the gradient of a layer's input before that of its weight: the former would be held while the latter's
    product needs the decoded input. Products are moved first, so that sums come to stand before them.
    """
    last = graph.find_nodes(op="placeholder")[-1]
    results = [node for node in graph.nodes if node.op == "call_function" and _is_result(node)]
    for result in sorted(results, key=is_product, reverse=True):
        nodes = list(graph.nodes)
        order = {node: place for place, node in enumerate(nodes)}
        cone = {result}
        for node in reversed(nodes[order[last] + 1 : order[result]]):
            is_own = not is_product(node) and _is_pure(node) and cone.issuperset(node.users)
            if (node in again or _is_view(node) or is_own) and not cone.isdisjoint(node.users):
                cone.add(node)
        roots = {one for node in cone for one in node.all_input_nodes} - cone
        place = max([last, *roots], key=order.__getitem__)
        for node in sorted(cone, key=order.__getitem__):
            if order[node] > order[place]:
                place.append(node)
                place = node


def _is_view(node: fx.Node) -> bool:
    return bool(getattr(node.target, "is_view", False))


def _is_result(node: fx.Node) -> bool:
    """Whether it is a new tensor that nothing but views and the output uses."""
    is_new = bool(node.users) and _is_pure(node) and not _is_view(node)
    return is_new and all(
        user.op == "output" or (_is_view(user) and all(one.op == "output" for one in user.users)) for user in node.users
    )


def _is_mutable(node: fx.Node) -> bool:
    """Whether it changes what goes into it."""
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def _is_pure(node: fx.Node) -> bool:
    """Whether it has no effect but its result, which is the same each time."""
    return not (node.is_impure() or is_drawn(node) or _is_mutable(node))


class _Copies:
    """Copies of nodes, at most one in a stretch."""

    def __init__(self, graph: fx.Graph, readers: dict[fx.Node, Reader], again: dict[fx.Node, None]) -> None:
        self.graph, self.readers = graph, readers
        self.order = {node: place for place, node in enumerate([*readers, *again])}
        self.made: dict[fx.Node, fx.Node] = {}
        self.reached: dict[fx.Node, set[fx.Node]] = {}  # by what was decoded of a placeholder
        self.products: dict[fx.Node, fx.Node] = {}  # the last that was reached

    def pass_by(self, node: fx.Node) -> None:
        """Take note of a node that stays: a product begins another stretch."""
        for placeholder, reached in self.reached.items():
            if not reached.isdisjoint(node.all_input_nodes):
                reached.add(node)
                if is_product(node) and isinstance(node.meta.get("val"), Tensor):
                    self.products[placeholder] = node
        if is_product(node):
            self.made = {}

    def of(self, node: fx.Node, user: fx.Node, others: list[fx.Node]) -> fx.Node:
        """The copy of a node in this stretch; there, or made before the user, and after the others that it uses."""
        for one in self._missing(node):
            if one in self.readers:
                self.made[one] = self._decoded(one, user, others)
            else:
                with self.graph.inserting_before(user):
                    self.made[one] = self.graph.node_copy(one, lambda part: self.made.get(part, part))
                self.pass_by(self.made[one])
        return self.made[node]

    def _missing(self, node: fx.Node) -> list[fx.Node]:
        """The node and what goes into it, as far as there are no copies, in this stretch, in order."""
        found, todo = set(), [node]
        while todo:
            one = todo.pop()
            if one in self.order and one not in found and one not in self.made:
                found.add(one)
                todo += one.all_input_nodes
        return sorted(found, key=self.order.__getitem__)

    def _decoded(self, placeholder: fx.Node, user: fx.Node, others: list[fx.Node]) -> fx.Node:
        reader = self.readers[placeholder]
        *codes, field = reader.codes
        awaited = [*others, *([self.products[placeholder]] if placeholder in self.products else [])]
        for one in dict.fromkeys(awaited):
            if one.op == "call_function" and _is_large_beside(one, field):
                field = _after(one, field, user)
        (decoded,) = inline(self.graph, reader.decoding, [*codes, field], user, [f"{placeholder.name}_decoded"])
        self.reached[placeholder] = {decoded}
        return decoded


def _is_large_beside(node: fx.Node, field: fx.Node) -> bool:
    """Whether it gives a tensor that it takes time to compute, on the device of the field."""
    value = node.meta.get("val")
    is_there = isinstance(value, Tensor) and value.device == field.meta["val"].device
    return is_there and hint(value.numel()) >= forms.SMALLEST


def _after(product: fx.Node, field: fx.Node, before: fx.Node) -> fx.Node:
    """The field, but not before a product is there: with 0 times a number of it.

    Or Inductor decodes earlier, in one kernel with something else of the size, and holds the result.
    """

    def call(operation: Callable[..., Any], *args: Any) -> fx.Node:
        with before.graph.inserting_before(before):
            node = before.graph.call_function(operation, args)
        node.meta["val"] = operation(*fx.node.map_arg(args, lambda one: one.meta["val"]))
        return node

    number = product
    for _ in range(product.meta["val"].dim()):
        number = call(aten.select.int, number, 0, 0)
    zero = call(aten.bitwise_and.Scalar, call(torch.ops.prims.convert_element_type.default, number, torch.int32), 0)
    return call(aten.bitwise_or.Tensor, field, zero)
