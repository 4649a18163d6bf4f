"""What is asked of the nodes of a graph."""

import inspect
from typing import Any

import torch
from torch import fx

from kernels.compression import private

aten = torch.ops.aten
PRODUCTS = (aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.convolution, aten.convolution_backward)


def packet_of(node: fx.Node) -> object:
    """The operation of a node without its overload, as torch.ops.aten.add; None for other nodes."""
    return getattr(node.target, "overloadpacket", None)


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """What an operation is given, by name; empty for other nodes."""
    if node.op != "call_function":
        return {}
    if hasattr(node.target, "_schema"):
        names = [argument.name for argument in node.target._schema.arguments]
    elif isinstance(node.target, private.HigherOrderOperator):
        names = list(inspect.signature(node.target).parameters)
    else:
        names = []
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def cone(*ends: object) -> set[fx.Node]:
    """The nodes among `ends`, and all that goes into them."""
    found, todo = set(), [one for one in ends if isinstance(one, fx.Node)]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.all_input_nodes
    return found


def without_unused(pairs: dict[fx.Node, fx.Node], used: set[fx.Node]) -> dict[fx.Node, fx.Node]:
    """The pairs without those whose placeholders were used, and are no more: they are erased.

    What was not used before stays: Inductor takes sizes from it.
    """
    gone = {placeholder for placeholder in pairs.values() if placeholder in used and not placeholder.users}
    for placeholder in gone:
        placeholder.graph.erase_node(placeholder)
    return {node: placeholder for node, placeholder in pairs.items() if placeholder not in gone}


def is_product(node: fx.Node) -> bool:
    """Whether it is an operation that Inductor does not fuse, and that takes most of the time."""
    packet = packet_of(node)
    return packet in PRODUCTS or "attention" in str(packet)


def is_drawn(node: fx.Node) -> bool:
    """Whether its result is random: another draw would be another number."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def origin(node: fx.Node) -> dict[str, Any]:
    """What tells where a node comes from, and in which part of the saved tensors it stands."""
    names = ("nn_module_stack", "stack_trace", "saved_tensor_with_no_vc_check", "partitioner_tag")
    return {name: node.meta[name] for name in names if name in node.meta}
