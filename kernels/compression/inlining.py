"""Inline the operations of a traced function into a graph."""

from torch import fx


def inline(
    graph: fx.Graph, traced: fx.GraphModule, arguments: list[fx.Node], before: fx.Node, names: list[str]
) -> list[fx.Node]:
    """Copy a traced function's operations into the graph; its results get these names and are returned."""
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
