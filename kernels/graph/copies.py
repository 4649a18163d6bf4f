"""Copies that capture adds and eager does not make, as of dropout with p = 0."""

import operator

import torch
from torch import fx

from actfit.kernels.compression.nodes import is_mutable, is_view

aten = torch.ops.aten


def without_copies(graph: fx.Graph) -> None:
    """Let results of which only a copy is read stand for it, where they lie in memory as it does."""
    for copy in graph.find_nodes(op="call_function", target=aten.clone.default):
        original = copy.args[0]
        if original.meta["val"].stride() == copy.meta["val"].stride() and _is_read_once(original):
            copy.replace_all_uses_with(original)
            graph.erase_node(copy)


def _is_read_once(node: fx.Node) -> bool:
    """Whether only one operation reads a result, of which the node may be a view."""
    while len(node.users) == 1 and node.op == "call_function":
        if node.target is operator.getitem and is_view(node.args[0]):
            return False  # other parts show the same memory
        if not is_view(node):
            return not is_mutable(node)
        node = node.args[0]
    return False
