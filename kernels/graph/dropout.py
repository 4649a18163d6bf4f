"""Dropout in graphs that run operation by operation, by eager numbers; what it gives follows from its mask."""

import operator

import torch
from torch import Tensor, fx

from actfit.kernels.compression.nodes import origin

aten = torch.ops.aten
DROPOUT = aten.native_dropout.default


def with_eager_dropout(forward: fx.Graph, backward: fx.Graph) -> None:
    """Let dropout on a CPU scale as eager does there: by the quotient of 1 and 1 - p in the tensor's own dtype."""
    for node in forward.find_nodes(op="call_function", target=DROPOUT):
        x, p, train = node.args
        value: Tensor = x.meta["val"]
        if value.device.type == "cpu" and train and 0 < p < 1:
            node.target, node.args = _dropout, (x, p, _scale(1 - p, value.dtype))
    for node in backward.find_nodes(op="call_function", target=aten.native_dropout_backward.default):
        gradient, mask, scale = node.args
        value = gradient.meta["val"]
        if value.device.type == "cpu" and scale:
            node.args = gradient, mask, _scale(1 / scale, value.dtype)


def _scale(probability: float, dtype: torch.dtype) -> float:
    """1/probability as PyTorch computes it, in float32 for 16 bits; a quotient of floats may be rounded twice."""
    wide = torch.promote_types(dtype, torch.float32)
    quotient = 1 / float(torch.tensor(probability, dtype=wide))
    return float(torch.tensor(float(torch.tensor(quotient, dtype=wide)), dtype=dtype))


def _dropout(x: Tensor, p: float, scale: float) -> tuple[Tensor, Tensor]:
    """As aten.native_dropout, by another scale."""
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p)
    return x.mul(mask).mul_(scale), mask


def is_dropped(node: fx.Node) -> bool:
    """Whether it is what dropout gives in training, neither x itself nor zeros."""
    if node.target is not operator.getitem or node.args[1] != 0 or node.args[0].target is not DROPOUT:
        return False
    _, p, train = node.args[0].args
    return bool(train) and 0 < p < 1


def mask_of(dropped: fx.Node) -> fx.Node:
    """The mask by which dropout gave that."""
    drawn: fx.Node = dropped.args[0]
    for node in drawn.users:
        if node.args[1] == 1:
            return node
    with drawn.graph.inserting_after(drawn):
        made = drawn.graph.call_function(operator.getitem, (drawn, 1))
    made.meta = {**origin(drawn), "val": drawn.meta["val"][1]}
    return made


def dropped_again(graph: fx.Graph, dropped: fx.Node, x: fx.Node, mask: fx.Node) -> fx.Node:
    """What dropout gives, from its mask."""
    value, p = dropped.meta["val"], dropped.args[0].args[1]
    # A GPU's kernel scales in float32, whatever the tensor is.
    dtype = value.dtype if value.device.type == "cpu" else torch.promote_types(value.dtype, torch.float32)
    kept = graph.call_function(aten.mul.Tensor, (x, mask))
    scaled = graph.call_function(aten.mul.Tensor, (kept, _scale(1 - p, dtype)))
    kept.meta, scaled.meta = dict(dropped.meta), dict(dropped.meta)
    return scaled
