"""Run a captured graph by PyTorch's own kernels, one operation after the other, without code generation."""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from actfit.kernels import private
from actfit.kernels.compression.nodes import is_tangent
from actfit.kernels.graph.undefined import without

Run = Callable[[list[Any]], Any]


def execute(module: fx.GraphModule) -> Run:
    """A function that runs the graph; it takes its inputs out of the list, and frees each tensor after its last use."""
    module.graph.set_codegen(private.boxed_codegen())
    module.recompile()
    forward = module.forward

    def run(inputs: list[Any]) -> Any:
        if not torch.is_grad_enabled():  # as within autograd's own functions
            return forward(inputs)
        with torch.no_grad():
            return forward(inputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def execute_backward(module: fx.GraphModule) -> Run:
    """As `execute`; where gradients of results are None, by a graph without them, made at the first such call."""
    graphs: dict[frozenset[int], Run] = {frozenset(): execute(module)}
    places = [place for place, node in enumerate(module.graph.find_nodes(op="placeholder")) if is_tangent(node)]

    def run(given: list[Any]) -> Any:
        undefined = frozenset(place for place in places if given[place] is None)
        if undefined not in graphs:
            graphs[undefined] = execute(without(module, undefined))
        return graphs[undefined](given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
