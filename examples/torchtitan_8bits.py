"""torchtitan's GraphTrainer with activations saved in 8 bits, by its registry of memory policies (torchtitan 0.3).

    torchrun --nproc-per-node 1 -m torchtitan.train --module examples.torchtitan_8bits --config llama3_debugmodel_8bits

The policy starts from torchtitan's own default, which saves the results of products and attention, and recomputes the
rest. It stores these results in 8 bits, and backward reads the decoded ones. Gradients become approximate; the loss
stays as it is. On a GPU Triton kernels encode and decode.
"""

from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import CheckpointPolicy
from torchtitan.experiments.graph_trainer.registry import MEMORY_POLICY_REGISTRY, register_memory_policy
from torchtitan.experiments.graph_trainer.selective_activation_remat import selective_activation_remat_pass

import actfit.kernels.engine.ops  # noqa: F401 - torch.ops.actfit

BITS, GROUP = 8, 64  # a group of so many elements has a minimum and a scale of its own


@register_memory_policy("actfit_8bits")
def saved_in_8_bits(module: fx.GraphModule, *, config: Any) -> fx.GraphModule:
    """Store what backward reads of forward in 8 bits, as far as torchtitan's default policy saves it."""
    module = MEMORY_POLICY_REGISTRY["default"](module, config=config)
    module = selective_activation_remat_pass(module)  # now backward reads what is saved, and what it computes itself
    for node in [*module.graph.nodes]:
        if is_stored(node):
            quantize(module.graph, node)
    module.graph.lint()
    module.recompile()
    return module


def is_backward(node: fx.Node) -> bool:
    """Whether a node is of the backward pass."""
    return bool(node.meta.get("autograd_backward", False))


def is_stored(node: fx.Node) -> bool:
    """Whether to quantize a node: a saved activation, but no gathered weight and no statistics of attention."""
    value = node.meta.get("val")
    if node.op != "call_function" or is_backward(node) or not any(map(is_backward, node.users)):
        return False
    if node.meta.get("recompute") is not CheckpointPolicy.MUST_SAVE or "c10d" in str(node.target):
        return False
    if node.target is getitem and node.args[1] != 0:
        return False
    return isinstance(value, Tensor) and value.is_floating_point() and value.numel() % GROUP == 0


def quantize(graph: fx.Graph, node: fx.Node) -> None:
    """Encode a node's result after it, and have backward read what is decoded before its first use there."""
    value = node.meta["val"]
    order = sorted(range(value.dim()), key=value.stride, reverse=True)  # as it lies in memory
    shape, back = [value.shape[dim] for dim in order], [order.index(dim) for dim in range(value.dim())]

    def encode(x: Tensor) -> tuple[Tensor, ...]:
        made: tuple[Tensor, ...] = torch.ops.actfit.encode_groups(x.permute(order).reshape(-1), None, GROUP, BITS)
        return made

    def decode(codes: Tensor, minimum: Tensor, scale: Tensor) -> Tensor:
        flat: Tensor = torch.ops.actfit.decode_groups(codes, minimum, scale, GROUP, value.numel(), value.dtype)
        return flat.view(shape).permute(back)

    first = next(user for user in graph.nodes if user in node.users and is_backward(user))
    stored = inlined(graph, node.next, encode, (node,), {**about(node), "recompute": CheckpointPolicy.MUST_SAVE})
    decoded = inlined(graph, first, decode, stored, {**about(first), "autograd_backward": True})
    node.replace_all_uses_with(decoded, delete_user_cb=is_backward)


def inlined(graph: fx.Graph, before: fx.Node, function: Any, given: tuple[fx.Node, ...], meta: dict[str, Any]) -> Any:
    """The nodes of a function's results, whose operations are put before a node; each gets this meta data."""
    values = [node.meta["val"] for node in given]
    with values[0].fake_mode:  # the results that tracing notes have no numbers
        traced = make_fx(function)(*values).graph
    known = set(graph.nodes)
    with graph.inserting_before(before):
        result = graph.graph_copy(traced, dict(zip(traced.find_nodes(op="placeholder"), given, strict=True)))
    for node in set(graph.nodes) - known:
        node.meta |= meta
    return result


def about(node: fx.Node) -> dict[str, Any]:
    """The module that a node is of, as torchtitan's passes read it."""
    return {"custom": dict(node.meta["custom"])} if "custom" in node.meta else {}


def llama3_debugmodel_8bits() -> Any:
    """torchtitan's small Llama, with this policy."""
    from torchtitan.experiments.graph_trainer.llama3 import config_registry

    config = config_registry.graph_trainer_llama3_debugmodel()
    config.compile.memory_policy = "actfit_8bits"
    return config
