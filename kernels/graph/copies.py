"""Copies and views: those that nothing needs go; and inputs that forward changes, as moving averages, are copied for
backward.
"""

import operator

import torch
from torch import SymInt, Tensor, fx

from actfit.kernels.compression.cut import pairs_of, save
from actfit.kernels.compression.nodes import call, is_mutable, is_view, origin

aten = torch.ops.aten


def without_copies(graph: fx.Graph) -> None:
    """Let results of which only a copy is read stand for it, where they lie in memory as it does.

    Most copies are of dropout with p = 0, of which eager makes none. What the graph returns stays a tensor of its own:
    it may be written into.
    """
    for copy in graph.find_nodes(op="call_function", target=aten.clone.default):
        original = copy.args[0]
        alike = original.meta["val"].stride() == copy.meta["val"].stride()
        if alike and _is_read_once(original, copy.meta["val"].numel()) and not _is_returned(copy):
            copy.replace_all_uses_with(original)
            graph.erase_node(copy)


def without_detours(graph: fx.Graph, outputs: int) -> None:
    """Let a matrix stand for the transpose of its transpose, and a tensor for a view that is as it is.

    Backward of products is full of them: a fifth of its calls. What forward returns, the first `outputs` results,
    stays a tensor of its own.
    """
    (last,) = graph.find_nodes(op="output")
    for node in list(graph.nodes):
        if node.target not in (aten.t.default, aten.view.default) or node in last.args[0][:outputs]:
            continue
        source = node.args[0]
        if node.target is aten.t.default is source.target:
            source = source.args[0]
        elif node.target is aten.t.default or not _is_alike(node.meta["val"], source.meta["val"]):
            continue
        node.replace_all_uses_with(source)
        graph.erase_node(node)


def _is_alike(view: Tensor, source: Tensor) -> bool:
    changes = any(isinstance(size, SymInt) for size in (*view.shape, *source.shape))  # to compare would be a guard
    return not changes and view.shape == source.shape and view.stride() == source.stride()


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


def changed_inputs(joint: fx.Graph) -> frozenset[str]:
    """Names of the inputs that forward changes: in the graph, or by what PyTorch copies into them after it."""
    (last,) = joint.find_nodes(op="output")
    after = [getattr(result, "mutated_input", None) for result in last.meta.get("desc", ())]
    inputs = joint.find_nodes(op="placeholder")
    inside = {node.args[0] for node in joint.find_nodes(op="call_function", target=aten.copy_.default)}
    return frozenset(node.name for node in inputs if node in inside or node.meta.get("desc", joint) in after)


def save_copies(forward: fx.Graph, backward: fx.Graph, outputs: int, changed: frozenset[str]) -> None:
    """Let forward save copies of these inputs in their place: backward gets them as they were."""
    start = next(node for node in forward.nodes if node.op != "placeholder")
    saved = list[fx.Node]()
    for node, placeholder in pairs_of(forward, backward, outputs).items():
        if node.op == "placeholder" and node.name in changed and placeholder.users:
            with forward.inserting_before(start):
                copy = call(forward, aten.clone.default, node)
            copy.meta |= origin(node)
            saved.append(copy)
        else:
            saved.append(node)
    save(forward, outputs, saved)


def return_own(forward: fx.GraphModule, outputs: int) -> None:
    """Let forward return copies of results that show memory of what it saves.

    They may be changed in place, and of a view PyTorch would not see that the saved tensor changes with it.
    """
    (last,) = forward.graph.find_nodes(op="output")
    results = list(last.args[0])
    saved = {_shown(node) for node in results[outputs:] if isinstance(node, fx.Node)}
    for place, node in enumerate(results[:outputs]):
        if isinstance(node, fx.Node) and _shown(node) is not node and _shown(node) in saved:
            with forward.graph.inserting_before(last):
                results[place] = call(forward.graph, aten.clone.default, node)
            results[place].meta |= origin(node)
    if results != list(last.args[0]):
        last.args = (type(last.args[0])(results),)
        forward.recompile()


def _shown(node: fx.Node) -> fx.Node:
    """The node whose memory a view shows; inputs, of which PyTorch sees changes, show none."""
    shown = node
    while is_view(shown) or (shown.target is operator.getitem and is_view(shown.args[0])):
        shown = shown.args[0]
    return node if shown.op == "placeholder" else shown
