"""Inputs that forward changes, as moving averages: backward gets them as they were."""

import torch
from torch import fx

from actfit.kernels.compression.cut import pairs_of
from actfit.kernels.compression.nodes import call, origin

aten = torch.ops.aten


def changed_inputs(joint: fx.Graph) -> frozenset[str]:
    """Names of the inputs that forward changes: in the graph, or by what PyTorch copies into them after it."""
    (last,) = joint.find_nodes(op="output")
    after = [getattr(result, "mutated_input", None) for result in last.meta.get("desc", ())]
    inputs = joint.find_nodes(op="placeholder")
    inside = {node.args[0] for node in joint.find_nodes(op="call_function", target=aten.copy_.default)}
    return frozenset(node.name for node in inputs if node in inside or node.meta.get("desc", joint) in after)


def save_copies(forward: fx.Graph, backward: fx.Graph, outputs: int, changed: frozenset[str]) -> None:
    """Let forward save copies of these inputs in their place."""
    (last,) = forward.find_nodes(op="output")
    saved = list(last.args[0][outputs:])
    start = next(node for node in forward.nodes if node.op != "placeholder")
    for node, placeholder in pairs_of(saved, backward).items():
        if node.op == "placeholder" and node.name in changed and placeholder.users:
            with forward.inserting_before(start):
                copy = call(forward, aten.clone.default, node)
            copy.meta |= origin(node)
            saved[saved.index(node)] = copy
    last.args = ((*last.args[0][:outputs], *saved),)
