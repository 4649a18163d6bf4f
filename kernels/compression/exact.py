"""What backward may not compute from decoded values is computed in forward, and crosses itself.

Two kinds of operations magnify a small error without bound. A step: a comparison, a rounding, a sign. Which side of 0 a
rectifier was on decides whether an element has a gradient at all; its result crosses as one bit. And the exponential of
a difference with a maximum or a log-sum-exp, a probability: an error of a step in a logit is a factor in the
probability, while a step in the code of the probability is a small part of the largest one in its group.
"""

import operator
from collections.abc import Iterator

import torch
from torch import Tensor, fx

from kernels.compression.nodes import cone, is_drawn, packet_of, without_unused
from kernels.compression.places import hint
from kernels.methods.every_tensor import STATISTIC

aten = torch.ops.aten
JUMPS = (
    *(aten.sign, aten.sgn, aten.copysign),
    *(aten.floor, aten.ceil, aten.round, aten.trunc, aten.frac, aten.remainder, aten.fmod),
)


def move_to_forward(
    forward: fx.Graph, backward: fx.Graph, pairs: dict[fx.Node, fx.Node], coded: set[fx.Node]
) -> dict[fx.Node, fx.Node]:
    """Move such operations from the backward graph into the forward graph.

    Parameters
    ----------
    pairs
        What crosses: nodes of the forward graph, and the placeholders of the backward graph that they go to.
    coded
        Those that will be coded.

    Returns
    -------
    The new pairs: with the results, and without what backward uses no more. The output of the forward graph is not
    changed yet.
    """
    places = {placeholder: node for node, placeholder in pairs.items()}
    used = {placeholder for placeholder in places if placeholder.users}
    approximate = {pairs[node] for node in coded}
    moved: dict[fx.Node, fx.Node] = {}
    known = {one.name: one for one in forward.nodes if one.op != "output"}
    known |= {placeholder.name: node for placeholder, node in places.items()}
    first = next((one for one in pairs.values() if isinstance(one.meta.get("val"), Tensor)), None)
    magnifying = [one for one in _without_gradients(backward, set(places)) if _is_step(one) or _is_probability(one)]
    # All are found before one is moved: what follows from a moved result follows from a code, too.
    for node in [one for one in magnifying if not approximate.isdisjoint(cone(one))]:
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


def _without_gradients(backward: fx.Graph, saved: set[fx.Node]) -> Iterator[fx.Node]:
    """The operations that only what crosses goes into, and constants, in their order."""
    found = set(saved)
    for node in list(backward.nodes):
        if node.op == "get_attr":
            found.add(node)
        if node.op == "call_function" and not is_drawn(node) and found.issuperset(node.all_input_nodes):
            found.add(node)
            yield node


def _is_step(node: fx.Node) -> bool:
    """Whether floating-point values give a truth, an integer, or a number that jumps."""
    # An index is the second result of such as topk.
    source = node.all_input_nodes[0] if node.target is operator.getitem else node
    values = [part.meta.get("val") for part in (node, *source.all_input_nodes)]
    result, *given = [isinstance(value, Tensor) and value.is_floating_point() for value in values]
    return any(given) and (packet_of(node) in JUMPS or (isinstance(values[0], Tensor) and not result))


def _is_probability(node: fx.Node) -> bool:
    """The exponential of a difference with a statistic."""
    if packet_of(node) is not aten.exp:
        return False
    one, size = node.args[0], hint(node.meta["val"].numel())
    while isinstance(one, fx.Node) and one.all_input_nodes:
        is_difference = packet_of(one) is aten.sub
        values = [part.meta.get("val") for part in one.all_input_nodes]
        if is_difference and any(isinstance(v, Tensor) and hint(v.numel()) * STATISTIC <= size for v in values):
            return True
        if not is_difference and len(values) > 1:
            return False
        one = one.all_input_nodes[0]  # through views, casts, and the other differences
    return False


def _copied(node: fx.Node, forward: fx.Graph, known: dict[str, fx.Node]) -> fx.Node:
    """The node in the forward graph: there under its name if forward computes it, or computed at its end."""
    needed = cone(node)
    (last,) = forward.find_nodes(op="output")
    with forward.inserting_before(last):
        for one in node.graph.nodes:
            if one in needed and one.name not in known:
                if one.op == "get_attr":
                    setattr(forward.owning_module, one.target, getattr(node.graph.owning_module, one.target))
                known[one.name] = forward.node_copy(one, lambda part: known[part.name])
    return known[node.name]
