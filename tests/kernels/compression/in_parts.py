"""Graphs in which element-wise operations work in the shape of codes' parts, and what is written there."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from actfit.kernels import private as names_of_torch
from actfit.kernels.compression import private, splice
from actfit.kernels.compression.nodes import WAITS_BY, is_product
from actfit.kernels.compression.regions import work_in_parts
from tests.kernels.compression.cuts import Step
from tests.kernels.compression.graphs import partitioner


class Mixed(nn.Module):
    """Views and element-wise functions between products, of hidden tensors in more than one shape."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x), self.second(x)))


def reversed_axes(a: Tensor, b: Tensor) -> Tensor:
    """Products of views in another memory order."""
    return (a.transpose(1, 2).sigmoid() * b.transpose(1, 2).tanh()).transpose(1, 2)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gate": lambda a, b: F.silu(a) * b,
    "gelu": lambda a, b: F.gelu(a) + F.gelu(b, approximate="tanh"),
    "another order": reversed_axes,
    "mixed orders": lambda a, b: a.sigmoid() * b.reshape(16, 4, 64).tanh().transpose(0, 1),
    "a row of numbers": lambda a, b: a.sigmoid() * b.mean(-1, keepdim=True),
    "a norm": lambda a, b: F.layer_norm(a, (64,)) * b.sigmoid(),
    "dropout": lambda a, b: F.dropout(F.silu(a), 0.3) * b,
    "relu": lambda a, b: a.relu() * b.relu(),
    "bits as integers": lambda a, b: a.sigmoid() * b.detach().view(torch.int32).float().sin() * b,
    "two widths": lambda a, b: F.silu(a.bfloat16()).float() * b,
    "a number": lambda a, b: F.silu(a) * b.sum() + a.exp(),
    "a constant": lambda a, b: F.silu(a) * (torch.full((4, 16, 64), 2.0) - b) * b.relu(),
}


def cuts_of(function: Callable[..., Any], *inputs: Tensor) -> tuple[Any, Any, list[fx.GraphModule]]:
    """Results of the cut graphs with regions and without, run operation by operation, and the backward graphs."""
    modules: list[fx.GraphModule] = []

    def keep(graph: fx.Graph, decoded: Any) -> None:
        work_in_parts(graph, decoded)
        modules.append(graph.owning_module)

    step = Step(function, partitioner(bits=4))
    with pytest.MonkeyPatch.context() as patch:
        step.run(*inputs).sum().backward()
        patch.setattr(splice, "work_in_parts", lambda graph, decoded: None)
        without = step.again(partitioner(bits=4))
        patch.setattr(splice, "work_in_parts", keep)
        within = step.again(partitioner(bits=4))
    return within, without, modules


def written(module: fx.GraphModule) -> list[fx.Node]:
    """What is written to memory in the shape of parts."""
    return [node for node in module.graph.nodes if node.target is names_of_torch.force_stride_order]


def readers(node: fx.Node) -> Iterator[fx.Node]:
    """Operations other than views that read it."""
    for user in node.users:
        if getattr(user.target, "is_view", False):
            yield from readers(user)
        else:
            yield user


def moved(function: Callable[[Tensor, Tensor], Tensor]) -> tuple[fx.GraphModule, fx.GraphModule]:
    """A graph of a function of a decoded tensor and another, [16, 64] each, before and after."""

    def joined(parts: Tensor, other: Tensor) -> list[Tensor]:
        return [function(private.in_memory(parts).view(16, 64), other)]

    with FakeTensorMode():
        given = torch.randn(2, 8, 2, 4, 8), torch.randn(16, 64)
    before, after = (private.trace(joined, *given) for _ in range(2))
    (kept,), (parts, *_) = written(after), after.graph.nodes
    work_in_parts(after.graph, {next(iter(kept.users)): parts})
    after.graph.lint()
    after.recompile()
    return before, after


def loop_of(node: fx.Node) -> set[fx.Node]:
    """What is computed in the loop of a node, and what that reads; without what it waits for."""
    nodes, todo = set(), [node]
    while todo:
        inner = todo.pop()
        if inner not in nodes:
            nodes.add(inner)
            is_read = is_product(inner) or inner.op == "placeholder"
            todo += [] if is_read else inner.all_input_nodes[:1] if WAITS_BY in inner.meta else inner.all_input_nodes
    return nodes
