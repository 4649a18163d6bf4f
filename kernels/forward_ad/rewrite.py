"""Replaces each region of an FX graph by one call."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils.checkpoint import checkpoint

from kernels.forward_ad.core import run_region
from kernels.forward_ad.regions import Region
from kernels.stock import transformed


class RegionModule(nn.Module):
    """Runs a region: body(source, *constants), element-wise in source; saves one derivative for each result."""

    def __init__(self, body: fx.GraphModule) -> None:
        super().__init__()
        self.body = body

    def forward(self, source: Tensor, *constants: Any) -> Sequence[Tensor]:
        if transformed() or not _fit(source, constants):
            return tuple(self.body(source, *constants))
        return run_region(lambda inside: self.body(inside, *constants), source)


class Checkpointed(RegionModule):
    """Saves only a region's source, and runs the region again in backward."""

    def forward(self, source: Tensor, *constants: Any) -> Sequence[Tensor]:
        return tuple(checkpoint(self.body, source, *constants, use_reentrant=False))


def _fit(source: Tensor, constants: Sequence[Any]) -> bool:
    """Whether the constants need no gradient and broadcast to the source's shape, as when the graph was made."""
    for constant in constants:
        if isinstance(constant, Tensor):
            if constant.requires_grad and torch.is_grad_enabled():
                return False
            offset = source.dim() - constant.dim()
            if offset < 0 or any(size not in (1, source.shape[offset + i]) for i, size in enumerate(constant.shape)):
                return False
    return True


def replace(
    module: fx.GraphModule, regions: Sequence[Region], kind: Callable[[fx.GraphModule], nn.Module] = RegionModule
) -> None:
    """Replace each region of `module` by a call of its own module, made by `kind`."""
    replaced: dict[fx.Node, fx.Node] = {}  # old output: new node
    count = 0
    for region in regions:
        while hasattr(module, f"chain_{count}"):
            count += 1
        module.add_submodule(f"chain_{count}", kind(_body(module, region, replaced)))
        inputs = tuple(replaced.get(node, node) for node in (region.source, *region.constants))
        with module.graph.inserting_before(region.place):
            call = module.graph.call_module(f"chain_{count}", inputs)
            for index, output in enumerate(region.outputs):
                replaced[output] = module.graph.call_function(operator.getitem, (call, index))
                replaced[output].meta = dict(output.meta)
        for output in region.outputs:
            output.replace_all_uses_with(replaced[output])
        for node in reversed(region.nodes):
            module.graph.erase_node(node)
    module.graph.lint()
    module.recompile()


def _body(module: fx.GraphModule, region: Region, replaced: dict[fx.Node, fx.Node]) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in (region.source, *region.constants):
        copies[replaced.get(node, node)] = graph.placeholder(node.name)
    for node in region.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        copies[node].meta = {}  # tensors of the trace would be copied and pickled with it
    graph.output(tuple(copies[node] for node in region.outputs))
    return fx.GraphModule(module, graph, "Body")
