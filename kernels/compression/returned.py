"""What forward returns is held by its caller, so that it crosses as it is, at no cost.

The caller may compute with the exact output, as a loss outside of the model does: -log p has the derivative 1 / p, by
which backward of a sigmoid multiplies p (1 - p). Decoded numbers there would cancel nothing.
"""

import torch
from torch import Tensor, fx

from kernels.compression.exact import is_step, let_results_cross, without_gradients
from kernels.compression.nodes import cone, is_view, packet_of

aten = torch.ops.aten


def cross_returned(
    forward: fx.Graph, backward: fx.Graph, pairs: dict[fx.Node, fx.Node], coded: set[fx.Node], outputs: int
) -> dict[fx.Node, fx.Node]:
    """Let outputs of forward cross that backward would compute again from codes.

    `pairs`, `coded` and the returned pairs are as in `exact.move_to_forward`. outputs: the number of forward's own.
    """
    returned = returned_by(forward, outputs)
    names = {node.name for node in forward.nodes if node.op == "call_function" and memory_of(node) in returned}
    approximate = {pairs[node] for node in coded}
    again = [
        node
        for node in without_gradients(backward, set(pairs.values()))
        if node.name in names and not all(map(is_step, node.users)) and not approximate.isdisjoint(cone(node))
    ]
    return let_results_cross(forward, backward, pairs, again)


def returned_by(forward: fx.Graph, outputs: int) -> set[fx.Node]:
    """The nodes that hold the memory of all elements of forward's floating-point outputs."""
    (last,) = forward.find_nodes(op="output")
    values = [node for node in last.args[0][:outputs] if isinstance(node, fx.Node)]
    return {memory_of(node) for node in values if _is_floating_point(node)}


def memory_of(node: fx.Node) -> fx.Node:
    """The node that a node is a view of, with all its elements; or itself."""
    while is_view(node) or packet_of(node) is aten._unsafe_view:
        source = node.all_input_nodes[0]
        if _length(node) != _length(source):
            break
        node = source
    return node


def _length(node: fx.Node) -> str:
    """The number of elements, as text: symbols are compared without a guard."""
    value = node.meta.get("val")
    return str(value.numel()) if isinstance(value, Tensor) else ""


def _is_floating_point(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point()
