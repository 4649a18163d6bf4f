"""The nodes of a graph: their properties, and how a traced function adds more."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import SymBool, SymFloat, SymInt, Tensor, fx

from actfit.kernels import private

aten = torch.ops.aten
CAST = torch.ops.prims.convert_element_type
PRODUCTS = (aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.convolution, aten.convolution_backward)


def packet_of(node: fx.Node) -> object:
    """The operation of a node without its overload, as torch.ops.aten.add; None for other nodes."""
    return getattr(node.target, "overloadpacket", None)


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operation by name; empty for other nodes."""
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
    """The nodes among `ends`, and all their ancestors."""
    nodes, todo = set(), [end for end in ends if isinstance(end, fx.Node)]
    while todo:
        node = todo.pop()
        if node not in nodes:
            nodes.add(node)
            todo += node.all_input_nodes
    return nodes


def walk_back(
    ends: Iterable[fx.Node],
    is_source: Callable[[fx.Node], bool],
    given_to: Callable[[fx.Node], list[fx.Node]] = lambda node: node.all_input_nodes,
) -> tuple[list[fx.Node], list[fx.Node]]:
    """The sources that nodes are made of, and what is computed on the way, the ends too; in the order of the graph.

    given_to: what a node is computed from.
    """
    sources, inside, todo = set[fx.Node](), set[fx.Node](), list(ends)
    while todo:
        node = todo.pop()
        if is_source(node):
            sources.add(node)
        elif node not in inside:
            inside.add(node)
            todo += given_to(node)
    return sorted(sources), sorted(inside)


def readings(start: fx.Node, through: Callable[[fx.Node], bool]) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Pairs of a node and an operation that reads it: of `start`, and of what is made of it by operations `through`."""
    seen, todo = {start}, [start]
    while todo:
        node = todo.pop()
        for user in node.users:
            yield node, user
            if user not in seen and through(user):
                seen.add(user)
                todo.append(user)


def without_unused(pairs: dict[fx.Node, fx.Node], used: set[fx.Node]) -> dict[fx.Node, fx.Node]:
    """The pairs without placeholders that were `used` and no longer are: these are erased.

    Placeholders that were never used stay: Inductor takes sizes from them.
    """
    gone = {placeholder for placeholder in pairs.values() if placeholder in used and not placeholder.users}
    for placeholder in gone:
        placeholder.graph.erase_node(placeholder)
    return {node: placeholder for node, placeholder in pairs.items() if placeholder not in gone}


def tensors_of(node: fx.Node) -> list[Tensor]:
    """The results of a node that are tensors; fake ones."""
    value = node.meta.get("val")
    return [x for x in (value if isinstance(value, list | tuple) else [value]) if isinstance(x, Tensor)]


def is_floating_point(node: fx.Node) -> bool:
    """Whether its result is one tensor of floating-point numbers."""
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point()


def is_size(node: fx.Node) -> bool:
    """Whether it is a size that changes, or a number made of such sizes."""
    return isinstance(node.meta.get("val"), SymInt | SymFloat | SymBool)


def is_product(node: fx.Node) -> bool:
    """Whether it is a matrix product, convolution or attention: Inductor does not fuse it, and it takes most time."""
    packet = packet_of(node)
    return packet in PRODUCTS or "attention" in str(packet)


def is_tangent(node: fx.Node) -> bool:
    """Whether it is the gradient of a result, in a graph of backward."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def is_drawn(node: fx.Node) -> bool:
    """Whether its result is random: another draw would be another number."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    return "attention" not in str(packet_of(node)) or arguments_of(node).get("dropout_p", 0.0) != 0


def is_view(node: fx.Node) -> bool:
    """Whether its result is a view of its argument."""
    return bool(getattr(node.target, "is_view", False))


def is_pointwise(node: fx.Node) -> bool:
    """Whether it works element by element."""
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def is_mutable(node: fx.Node) -> bool:
    """Whether it changes an argument in place."""
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def is_pure(node: fx.Node) -> bool:
    """Whether it has no side effects, and the same result each time."""
    return not (node.is_impure() or is_drawn(node) or is_mutable(node))


def call(graph: fx.Graph, operation: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A new node at the graph's place of insertion, with the result's metadata."""
    node = graph.call_function(operation, args, kwargs)
    given, named = fx.node.map_arg((args, kwargs), lambda argument: argument.meta["val"])
    node.meta["val"] = operation(*given, **named)
    return node


def origin(node: fx.Node) -> dict[str, Any]:
    """Metadata that says where a node comes from."""
    names = ("nn_module_stack", "stack_trace", "partitioner_tag")
    return {name: node.meta[name] for name in names if name in node.meta}
