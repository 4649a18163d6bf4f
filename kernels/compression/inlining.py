"""Operations of a traced function, put into a graph; and which operations of a graph are products, or random."""

from typing import Any

import torch
from torch import fx

from kernels.compression.forms import packet_of

aten = torch.ops.aten
PRODUCTS = (aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.convolution, aten.convolution_backward)


def inline(
    graph: fx.Graph, traced: fx.GraphModule, arguments: list[fx.Node], before: fx.Node, names: list[str]
) -> list[fx.Node]:
    """Copies of a traced function's operations, and those of them that are its results, under these names."""
    (output,) = traced.graph.find_nodes(op="output")
    named = dict(zip(output.args[0], names, strict=False))
    copies: dict[fx.Node, fx.Node] = {}
    given = iter(arguments)
    with graph.inserting_before(before):
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                copies[node] = next(given)
            elif node.op != "output":
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), copies.__getitem__)
                copies[node] = graph.create_node(node.op, node.target, args, kwargs, named.get(node))
                copies[node].meta = dict(node.meta)
    return [copies[node] for node in output.args[0]]


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
