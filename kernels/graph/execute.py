"""Run a captured graph by PyTorch's own kernels, one operation after the other, without code generation."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from kernels import private

Run = Callable[[list[Any]], Any]


def execute(module: fx.GraphModule, _: Sequence[object] = ()) -> Run:
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
