"""Copies that nothing needs: most are of dropout with p = 0, of which eager makes none."""

import operator

import torch
from torch import fx

from actfit.kernels.compression.nodes import is_mutable, is_view

aten = torch.ops.aten


def without_copies(graph: fx.Graph) -> None:
    """Let results of which only a copy is read stand for it, where they lie in memory as it does.

    What the graph returns stays a tensor of its own: it may be written into.
    """
    for copy in graph.find_nodes(op="call_function", target=aten.clone.default):
        original = copy.args[0]
        alike = original.meta["val"].stride() == copy.meta["val"].stride()
        if alike and _is_read_once(original, copy.meta["val"].numel()) and not _is_returned(copy):
            copy.replace_all_uses_with(original)
            graph.erase_node(copy)


def _is_returned(node: fx.Node) -> bool:
    return any(user.op == "output" or (is_view(user) and _is_returned(user)) for user in node.users)


def _is_read_once(node: fx.Node, count: int) -> bool:
    """Whether only one operation reads a result of so many elements, which the node is, or a view of all of it."""
    while len(node.users) == 1 and node.op == "call_function":
        if node.target is operator.getitem and is_view(node.args[0]):
            return False  # other parts show the same memory
        if not is_view(node):
            return not is_mutable(node) and bool(node.meta["val"].numel() == count)
        node = node.args[0]
    return False
