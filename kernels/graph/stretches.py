"""When backward decodes: once in each stretch, the operations between two products.

A tensor that is decoded once, and read on both sides of a product, would be held while the product runs. So each
stretch gets copies of its own of the decoding, and of views and element-wise operations on saved tensors alone. Where
the memory is there anyway, as the graph takes more elsewhere, one decoding serves several stretches.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from torch import Tensor, fx

from actfit.kernels.compression import forms
from actfit.kernels.compression.layout import hint
from actfit.kernels.compression.nodes import (
    is_mutable,
    is_pointwise,
    is_product,
    is_pure,
    is_view,
    packet_of,
    walk_back,
)
from actfit.kernels.graph.lifetimes import decode_once

Decoding = Callable[[fx.Node], fx.Node]  # from the operation that reads it to the decoded tensor, before that


def decode_in_stretches(
    graph: fx.Graph, decodings: Mapping[fx.Node, Decoding], saved: Collection[fx.Node], compiles: bool
) -> None:
    """Replace and erase placeholders of a backward graph that have codes.

    Parameters
    ----------
    decodings
        By the placeholder.
    saved
        The placeholders of all saved tensors, with codes or without.
    compiles
        Whether Inductor compiles the graph.
    """
    changed = {argument for node in graph.nodes if is_mutable(node) for argument in node.all_input_nodes}
    from_codes = _from_codes(graph, decodings, set(saved) - changed)
    copies: dict[fx.Node, fx.Node] = {}
    made = defaultdict[fx.Node, list[fx.Node]](list)
    for_attention: dict[fx.Node, fx.Node] = {}  # what it read: it is computed again shortly before its backward pass
    for user in list(graph.nodes):
        if user in from_codes:
            continue
        read = [node for node in user.all_input_nodes if node in from_codes]
        _, missing = walk_back(read, lambda node: node not in from_codes or node in copies)  # noqa: B023 - used at once
        for node in missing:
            if node in decodings:
                copies[node] = decodings[node](user)
                made[node].append(copies[node])
            else:
                given = {part: copies.get(part, part) for part in node.all_input_nodes}
                with graph.inserting_before(user):
                    copies[node] = graph.node_copy(node, given.__getitem__)
        for node in read:
            user.replace_input_with(node, copies[node])
        if is_product(user):  # what it reads is in memory, and may be read in the next stretch
            bases, views = walk_back(user.all_input_nodes, lambda node: not is_view(node))
            held = {*bases, *views}
            copies = {node: copy for node, copy in copies.items() if copy in held}
            for_attention = copies if "attention" in str(packet_of(user)) else for_attention
            copies = copies | for_attention
    for node in reversed(from_codes):
        graph.erase_node(node)
    # What ends in a view is computed by plain operations, in the loop that reads it.
    decode_once(graph, [each for each in made.values() if not is_view(each[0])], compiles)


def _from_codes(graph: fx.Graph, coded: Collection[fx.Node], saved: Collection[fx.Node]) -> dict[fx.Node, None]:
    """Placeholders with codes, and what is computed from saved tensors and these, in order."""
    found: dict[fx.Node, None] = {}
    for node in graph.nodes:
        given = node.all_input_nodes
        is_computed = any(x in found for x in given) and all(x in found or x in saved for x in given)
        if node in coded or (is_computed and _may_repeat(node)):
            found[node] = None
    return found


def _may_repeat(node: fx.Node) -> bool:
    """Whether it is a view or an element-wise operation with a large result."""
    value = node.meta.get("val")
    is_large = isinstance(value, Tensor) and hint(value.numel()) >= forms.SMALLEST
    return is_large and is_pure(node) and (is_view(node) or is_pointwise(node))
