"""Operations that need exact values are moved from backward to forward, and their results cross.

Three kinds of operations magnify a small error without bound. A step: a comparison, a rounding, a sign. The sign of a
rectifier's input decides whether an element has a gradient at all; it crosses as one bit. And a probability, the
exponential of a difference with a maximum or a log-sum-exp: an error of a step in a logit is a factor of the
probability, while a step in the code of the probability is a small part of the largest one in its group. And a wave, as
the sine: a step of the code of a phase may be a turn, while sine and cosine themselves are at most 1.
"""

import operator
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, fx

from actfit.kernels.compression.layout import hint
from actfit.kernels.compression.nodes import cone, is_drawn, packet_of, without_unused
from actfit.kernels.methods.every_tensor import STATISTIC

aten = torch.ops.aten
JUMPS = (
    *(aten.sign, aten.sgn, aten.copysign),
    *(aten.floor, aten.ceil, aten.round, aten.trunc, aten.frac, aten.remainder, aten.fmod, aten.frexp),
)

WAVES = (aten.sin, aten.cos, aten.tan)


def move_to_forward(
    forward: fx.Graph, backward: fx.Graph, pairs: dict[fx.Node, fx.Node], coded: set[fx.Node], held: set[fx.Node]
) -> dict[fx.Node, fx.Node]:
    """Move such operations from the backward graph into the forward graph.

    Parameters
    ----------
    pairs
        Nodes of the forward graph that cross, and their placeholders in the backward graph.
    coded
        The nodes that will be coded.
    held
        Nodes that cross as they are, at no cost. Their steps are moved, too: if backward needs nothing else, they are
        not held for longer.

    Returns
    -------
    The new pairs: with the results, and without nodes that backward no longer uses. The output of the forward graph is
    not changed yet.
    """
    sources = {placeholder: node for node, placeholder in pairs.items()}
    approximate = {pairs[node] for node in coded}
    steps_of = approximate | {pairs[node] for node in held}
    magnifying = [
        node
        for node in without_gradients(backward, set(sources))
        if (is_step(node) and not steps_of.isdisjoint(cone(node)))
        or ((packet_of(node) in WAVES or is_probability(node, sources)) and not approximate.isdisjoint(cone(node)))
    ]
    return let_results_cross(forward, backward, pairs, magnifying)


def let_results_cross(
    forward: fx.Graph, backward: fx.Graph, pairs: dict[fx.Node, fx.Node], nodes: list[fx.Node]
) -> dict[fx.Node, fx.Node]:
    """Compute nodes of the backward graph, without gradients, in the forward graph; their results cross.

    Names tell which nodes of both graphs are the same. `pairs` and the returned pairs are as in `move_to_forward`.
    """
    sources = {placeholder: node for node, placeholder in pairs.items()}
    used = {placeholder for placeholder in sources if placeholder.users}
    moved: dict[fx.Node, fx.Node] = {}
    known = {node.name: node for node in forward.nodes if node.op != "output"}
    known |= {placeholder.name: node for placeholder, node in sources.items()}
    first = next(
        (placeholder for placeholder in pairs.values() if isinstance(placeholder.meta.get("val"), Tensor)), None
    )
    for node in nodes:  # collected before any is moved: a user of a moved result depends on a code, too
        with backward.inserting_before(first):
            placeholder = backward.placeholder(f"{node.name}_of_forward")
        placeholder.meta = dict(node.meta)
        known[placeholder.name] = _copied(node, forward, known)
        moved[known[placeholder.name]] = placeholder
        node.replace_all_uses_with(placeholder)
    backward.eliminate_dead_code()
    if not moved:
        return pairs
    together: dict[fx.Node, fx.Node] = {}
    for node, placeholder in pairs.items():
        together |= moved if placeholder is first else {}
        together[node] = placeholder
    return without_unused(together, used)


def without_gradients(backward: fx.Graph, saved: set[fx.Node]) -> Iterator[fx.Node]:
    """The operations on crossing tensors and constants alone, in their order."""
    gradient_free = set(saved)
    for node in list(backward.nodes):
        if node.op == "get_attr":
            gradient_free.add(node)
        if node.op == "call_function" and not is_drawn(node) and gradient_free.issuperset(node.all_input_nodes):
            gradient_free.add(node)
            yield node


def is_step(node: fx.Node) -> bool:
    """Whether it maps floating-point values to bools, integers, or numbers that jump."""
    # For an index, the second result of topk and the like; for both results of frexp.
    source = node.all_input_nodes[0] if node.target is operator.getitem else node
    values = [part.meta.get("val") for part in (node, *source.all_input_nodes)]
    result, *of_arguments = [isinstance(value, Tensor) and value.is_floating_point() for value in values]
    return any(of_arguments) and (packet_of(source) in JUMPS or (isinstance(values[0], Tensor) and not result))


def is_probability(node: fx.Node, sources: Mapping[fx.Node, fx.Node]) -> bool:
    """Whether it is a softmax, or the exponential of a difference with a statistic.

    `sources` are nodes of the forward graph by their placeholders: as logarithms of probabilities they may cross.
    """
    if packet_of(node) is aten._softmax:
        return True
    if packet_of(node) is not aten.exp:
        return False
    operand, size = node.args[0], hint(node.meta["val"].numel())
    while isinstance(operand := sources.get(operand, operand), fx.Node) and operand.all_input_nodes:
        is_difference = packet_of(operand) is aten.sub
        values = [part.meta.get("val") for part in operand.all_input_nodes]
        if is_difference and any(isinstance(v, Tensor) and hint(v.numel()) * STATISTIC <= size for v in values):
            return True
        if not is_difference and len(values) > 1:
            return False
        operand = operand.all_input_nodes[0]  # through views, casts, and the other differences
    return False


def _copied(node: fx.Node, forward: fx.Graph, known: dict[str, fx.Node]) -> fx.Node:
    """The node of the same name in the forward graph, or a copy at its end."""
    needed = cone(node)
    (last,) = forward.find_nodes(op="output")
    with forward.inserting_before(last):
        for origin in node.graph.nodes:
            if origin in needed and origin.name not in known:
                if origin.op == "get_attr":
                    setattr(forward.owning_module, origin.target, getattr(node.graph.owning_module, origin.target))
                known[origin.name] = forward.node_copy(origin, lambda part: known[part.name])
    return known[node.name]
