"""What forward returns is held by its caller, so that it crosses as it is, at no cost.

The caller may compute with the exact output, as a loss outside of the model does: -log p has the derivative 1 / p, by
which backward of a sigmoid multiplies p (1 - p). Decoded numbers there would cancel nothing. So it is of an output
that is made of p element by element, as p ** 2, or moves p's elements: what backward reads of p then crosses whole.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, fx

from actfit.kernels.compression.exact import is_step, let_results_cross, without_gradients
from actfit.kernels.compression.nodes import CAST, cone, is_floating_point, is_pointwise, is_view, packet_of, walk_back

aten = torch.ops.aten
# Functions that come near a limit, where all that is left of their derivatives is small.
SATURATING = (aten.sigmoid, aten.tanh, aten.exp, aten.exp2, aten.expm1, aten.erf, aten.erfc, aten._softmax)
MOVING = (
    *(CAST, aten._to_copy, aten.clone, aten._unsafe_view, aten.cat, aten.stack, aten.where),
    *(aten.gather, aten.index, aten.index_select, aten.embedding, aten.take),
    *(aten.flip, aten.roll, aten.repeat, aten.constant_pad_nd),
    *(aten.copy, aten.slice_scatter, aten.select_scatter, aten.index_put),
)


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
    return {memory_of(node) for node in values if is_floating_point(node)}


def made_into(ends: Iterable[fx.Node], nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Those of `nodes` that are computed element by element from a saturating function of which one of `ends` is."""
    functions = _saturating(_made_of(*ends))
    if not functions:
        return set()
    operands = set(map(_operand, functions))  # ELU returns expm1(x), and its derivative is exp(x)
    return {
        node
        for node in nodes
        if is_floating_point(node) and any(_operand(part) in operands for part in _saturating(_made_of(node)))
    }


def _made_of(*ends: fx.Node) -> set[fx.Node]:
    """The nodes of which `ends` are made element by element, or by moving elements; and those where that ends."""

    def given_to(node: fx.Node) -> list[fx.Node]:
        moves = is_view(node) or is_pointwise(node) or packet_of(node) in MOVING
        return list(filter(is_floating_point, node.all_input_nodes)) if moves and not _gates_itself(node) else []

    return set(walk_back(ends, lambda _: False, given_to)[1])


def _gates_itself(node: fx.Node) -> bool:
    """Whether it is x s(x), as SiLU and GELU are: it grows with x, and no such function of it alone is returned."""
    if packet_of(node) is not aten.mul or len(node.all_input_nodes) != 2:
        return False
    made = [_made_of(factor) for factor in node.all_input_nodes]
    plain = [nodes for nodes in made if not _saturating(nodes)]
    if len(plain) != 1:
        return False
    (gate,) = (nodes for nodes in made if nodes is not plain[0])
    ends = {part for part in plain[0] if not plain[0].intersection(part.all_input_nodes)}
    return ends <= gate


def _operand(function: fx.Node) -> fx.Node:
    """What a function is of, without factors and casts."""
    node: fx.Node = function.args[0]
    while packet_of(node) in (aten.mul, CAST) and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return node


def _saturating(nodes: set[fx.Node]) -> set[fx.Node]:
    return {node for node in nodes if packet_of(node) in SATURATING}


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
