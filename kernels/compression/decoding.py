"""Where backward decodes: separately in each stretch, the operations between two products.

A value that is decoded or computed from decoded ones once, and used on both sides of a product, would be held whole
while the product runs. So each stretch gets its own copies of the decoding and of element-wise operations on crossing
tensors alone: Inductor fuses them with their users, but for decoding on a GPU, by kernels of our own.

What a product reads itself is in memory, and goes on into the next stretch: so one copy serves the gradients of all
layers with the same input. What attention reads, when it is computed again, stays for its backward pass, unless another
tensor is decoded before that.
"""

from dataclasses import dataclass
from operator import getitem

import torch
from torch import Tensor, fx

from actfit.kernels.compression import forms, opaque
from actfit.kernels.compression.layout import hint
from actfit.kernels.compression.nodes import (
    WAITS_BY,
    call,
    inline,
    is_mutable,
    is_pointwise,
    is_product,
    is_pure,
    is_view,
    packet_of,
)

aten = torch.ops.aten
MOVING = (aten._unsafe_view, aten.cat)  # operations other than views that compute nothing


@dataclass(frozen=True)
class Decoder:
    """Decodes a placeholder of the backward graph.

    Attributes
    ----------
    codes
        The placeholders that it is decoded from.
    decoding
        How: the operations, to the tensor, or where `joining` is given to its parts, in the shape of the codes.
    joining
        The operations from the parts to the tensor, which write it to memory.
    """

    codes: list[fx.Node]
    decoding: fx.GraphModule
    joining: fx.GraphModule | None = None

    @property
    def is_opaque(self) -> bool:
        """Whether by a kernel that Inductor does not fuse with others."""
        return any(call.target is opaque.DECODE for call in self.decoding.graph.nodes)


def decode_where_used(
    graph: fx.Graph, decoders: dict[fx.Node, Decoder], crossing: set[fx.Node]
) -> dict[fx.Node, fx.Node]:
    """Replace and erase coded placeholders of the backward graph; their values are decoded in each stretch.

    Returns the parts of decoded tensors that have some.

    Parameters
    ----------
    decoders
        Of the coded placeholders.
    crossing
        The placeholders of all crossing tensors, coded or not; the others are gradients.
    """
    if not decoders:
        return {}
    changed = {argument for node in graph.nodes if is_mutable(node) for argument in node.all_input_nodes}
    recomputed = _recomputed_nodes(graph, set(decoders), crossing - changed)
    if not changed:
        move_results(graph, recomputed)
    copies = _Copies(graph, decoders, recomputed)
    for user in list(graph.nodes):
        if user not in recomputed:
            inputs = user.all_input_nodes
            others = [node for node in inputs if node not in decoders and node not in recomputed]
            for node in inputs:
                if node in decoders or node in recomputed:
                    user.replace_input_with(node, copies.of(node, user, others))
            copies.pass_by(user)
    for node in reversed([*decoders, *recomputed]):
        graph.erase_node(node)
    return copies.parts


def _recomputed_nodes(graph: fx.Graph, coded: set[fx.Node], crossing: set[fx.Node]) -> dict[fx.Node, None]:
    """Large results of element-wise operations on crossing tensors alone, at least one of them coded; in order."""
    recomputed: dict[fx.Node, None] = {}
    for node in graph.nodes:
        inputs = node.all_input_nodes
        from_codes = any(argument in coded or argument in recomputed for argument in inputs)
        if (
            from_codes
            and _may_repeat(node)
            and all(argument in crossing or argument in recomputed for argument in inputs)
        ):
            recomputed[node] = None
    return recomputed


def _may_repeat(node: fx.Node) -> bool:
    """Whether it is a view or an element-wise operation with a large result."""
    value = node.meta.get("val")
    is_large = isinstance(value, Tensor) and hint(value.numel()) >= forms.SMALLEST
    if node.op != "call_function" or not is_large or not is_pure(node):
        return False
    return is_view(node) or packet_of(node) in MOVING or is_pointwise(node)


def move_results(graph: fx.Graph, recomputed: dict[fx.Node, None]) -> None:
    """Move nodes that only the output uses, gradients of weights, right after the gradient they are computed from.

    Autograd computes the gradient of a layer's input before that of its weight: it would be held while the product for
    the weight needs the decoded input. Products are moved first, so that sums end up before them.
    """
    last = graph.find_nodes(op="placeholder")[-1]
    results = [node for node in graph.nodes if node.op == "call_function" and _is_result(node)]
    for result in sorted(results, key=is_product, reverse=True):
        nodes = list(graph.nodes)
        order = {node: place for place, node in enumerate(nodes)}
        cone = {result}
        for node in reversed(nodes[order[last] + 1 : order[result]]):
            is_own = not is_product(node) and is_pure(node) and cone.issuperset(node.users)
            if (node in recomputed or is_view(node) or is_own) and not cone.isdisjoint(node.users):
                cone.add(node)
        roots = {argument for node in cone for argument in node.all_input_nodes} - cone
        place = max([last, *roots], key=order.__getitem__)
        for node in sorted(cone, key=order.__getitem__):
            if order[node] > order[place]:
                place.append(node)
                place = node


def _is_result(node: fx.Node) -> bool:
    """Whether it is a new tensor used only by views and the output."""
    return is_pure(node) and not is_view(node) and _is_for_output(node)


def _is_for_output(node: fx.Node) -> bool:
    """Whether the output uses it, and nothing else but as a view."""
    return bool(node.users) and all(
        user.op == "output" or (is_view(user) and _is_for_output(user)) for user in node.users
    )


class _Copies:
    """Copies of nodes, at most one in a stretch."""

    def __init__(self, graph: fx.Graph, decoders: dict[fx.Node, Decoder], recomputed: dict[fx.Node, None]) -> None:
        self.graph, self.decoders = graph, decoders
        self.order = {node: place for place, node in enumerate([*decoders, *recomputed])}
        self.places = {node: place for place, node in enumerate(graph.nodes)}
        self.copies: dict[fx.Node, fx.Node] = {}
        self.parts: dict[fx.Node, fx.Node] = {}
        self.for_attention: dict[fx.Node, fx.Node] = {}  # what it read last, until another tensor is decoded
        self.reached: dict[fx.Node, set[fx.Node]] = {}  # by values that depend on a decoded placeholder
        self.products: dict[fx.Node, fx.Node] = {}  # the last product among these

    def pass_by(self, node: fx.Node) -> None:
        """Record a node that is not copied: a product begins a new stretch, with what it reads itself."""
        for placeholder, reached in self.reached.items():
            if not reached.isdisjoint(node.all_input_nodes):
                reached.add(node)
                if is_product(node) and isinstance(node.meta.get("val"), Tensor):
                    self.products[placeholder] = node
        if is_product(node):
            self.copies = self._read_by(node)
            if "attention" in str(packet_of(node)):
                self.for_attention = self.copies
            self.copies = self.copies | self.for_attention

    def _read_by(self, product: fx.Node) -> dict[fx.Node, fx.Node]:
        return {node: copy for node, copy in self.copies.items() if copy in product.all_input_nodes}

    def of(self, node: fx.Node, user: fx.Node, others: list[fx.Node]) -> fx.Node:
        """The copy of a node in this stretch, made if needed: before the user and after its other inputs."""
        for missing in self._missing(node):
            if missing in self.decoders:
                self.copies[missing] = self._decoded(missing, user, others)
            else:
                with self.graph.inserting_before(user):
                    self.copies[missing] = self.graph.node_copy(missing, lambda part: self.copies.get(part, part))
                self.pass_by(self.copies[missing])
        return self.copies[node]

    def _missing(self, node: fx.Node) -> list[fx.Node]:
        """The node and its ancestors without a copy in this stretch, in order."""
        missing, todo = set(), [node]
        while todo:
            candidate = todo.pop()
            if candidate in self.order and candidate not in missing and candidate not in self.copies:
                missing.add(candidate)
                todo += candidate.all_input_nodes
        return sorted(missing, key=self.order.__getitem__)

    def _decoded(self, placeholder: fx.Node, user: fx.Node, others: list[fx.Node]) -> fx.Node:
        decoder, self.for_attention = self.decoders[placeholder], {}
        *codes, field = decoder.codes
        if decoder.is_opaque:
            others = [product for other in others for product in _products_of(other)]
        results = [*others, *([self.products[placeholder]] if placeholder in self.products else [])]
        awaited = [result for result in dict.fromkeys(results) if _is_large_beside(result, field)]
        if not decoder.is_opaque:
            for result in awaited:
                field = _after(result, field, user)
        name = f"{placeholder.name}_decoded"
        (decoded,) = inline(self.graph, decoder.decoding, [*codes, field], user, [name])
        if decoder.joining is not None:
            parts = decoded
            (decoded,) = inline(self.graph, decoder.joining, [parts], user, [name])
            self.parts[decoded] = parts
        if decoder.is_opaque and awaited:
            opaque.wait_for(decoded, max(awaited, key=self.places.__getitem__))  # to hold no other for longer
        self.reached[placeholder] = {decoded}
        return decoded


def _products_of(node: fx.Node) -> list[fx.Node]:
    """The results of products that a node is made of by other operations."""
    products, seen, todo = [], set(), [node]
    while todo:
        made = todo.pop()
        if made in seen or made.op != "call_function":
            continue
        seen.add(made)
        if is_product(made.all_input_nodes[0] if made.target is getitem else made):
            products.append(made)
        elif made.target is not opaque.DECODE:
            todo += made.all_input_nodes
    return products


def _is_large_beside(node: fx.Node, field: fx.Node) -> bool:
    """Whether it is an operation on others, and its result a large tensor on the device of the field."""
    value = node.meta.get("val")
    if (
        node.op != "call_function"
        or not node.all_input_nodes
        or not isinstance(value, Tensor)
        or value.device != field.meta["val"].device
    ):
        return False
    return hint(value.numel()) >= forms.SMALLEST


def _after(product: fx.Node, field: fx.Node, before: fx.Node) -> fx.Node:
    """The field, made to depend on a product by a zero bit from one of its elements.

    Otherwise Inductor would decode earlier, in one kernel with another operation of the size, and hold the result.
    """

    graph, made = before.graph, []
    with graph.inserting_before(before):
        number = product
        for _ in range(product.meta["val"].dim()):
            made.append(number := call(graph, aten.select.int, number, 0, 0))
        made.append(number := call(graph, torch.ops.prims.convert_element_type.default, number, torch.int32))
        waiting = call(graph, aten.bitwise_or.Tensor, field, call(graph, aten.bitwise_and.Scalar, number, 0))
    waiting.meta[WAITS_BY] = made[0]
    return waiting
