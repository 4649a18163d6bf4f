"""Gradients of gradients of a captured call, which runs once more where somebody builds a graph of backward.

With `create_graph` the captured operations run in eager mode, and autograd differentiates them, as often as is asked
for. Of what the call was given only weak references are kept: weights live in the model, and what forward saves as it
is lives with it. Where something is gone, as a tensor that is stored in a few bits, or was changed since (but through
`.data`, which no tensor knows), or where the call draws random numbers, ran under autocast or calls an
autograd.Function, whose saved tensors are not in the graph, gradients are differentiable once, and what differentiates
them again is refused.
"""

import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, fx

from actfit.kernels.graph.held import Held, version
from actfit.kernels.memory.isolated import forked_random, random_states

Gradients = tuple[Tensor | None, ...]


class Call:
    """What one call was given, held weakly; `gradients` runs it once more."""

    def __init__(self, run: Callable[..., Any], given: Sequence[Any]) -> None:
        self._run, self._given = run, Held(given, version)

    def gradients(self, of_results: Sequence[Tensor | None], wanted: Sequence[bool]) -> Gradients | None:
        """Those of what was given, by those of the results, differentiable again; None: it cannot run once more.

        wanted: which of the inputs get one, whatever is asked for.
        """
        given = self._given.values()
        if not self._given.are_as_before(given):
            return None
        if [isinstance(x, Tensor) and x.requires_grad for x in given] != list(wanted):
            return None  # PyTorch gives the graph something else than what it was given
        # Of tensors of their own: one input may be made of another, and hooks run at the gradients that this gives.
        given = [torch.ops.aten.alias.default(x) if wants else x for x, wants in zip(given, wanted, strict=True)]
        inputs = [x for x, wants in zip(given, wanted, strict=True) if wants]
        with forked_random():
            before = random_states()
            results = self._run(*given)
            draws = not all(map(torch.equal, before, random_states()))
        if draws or len(results) != len(of_results):
            return None
        pairs = [
            (result, gradient)
            for result, gradient in zip(results, of_results, strict=True)
            if gradient is not None and isinstance(result, Tensor) and result.requires_grad
        ]
        outputs, outer = zip(*pairs, strict=True) if pairs else ((), ())
        inner = iter(torch.autograd.grad(outputs, inputs, outer, create_graph=True, allow_unused=True))
        return tuple(next(inner) if wants else None for wants in wanted)


def once_more(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any] | None:
    """What runs the operations of a captured graph in eager mode; None: that would not be what the call computed."""
    kinds = {x.device.type for x in inputs if isinstance(x, Tensor)}
    kinds = {kind for kind in kinds if torch.amp.is_autocast_available(kind)}
    parts = [part for part in graph.modules() if isinstance(part, fx.GraphModule)]
    called = {str(node.target) for part in parts for node in part.graph.nodes}
    if any(map(torch.is_autocast_enabled, kinds)) or any("autograd_function" in target for target in called):
        return None
    operations = copy.deepcopy(graph.graph)  # what is compiled next may change it
    for node in operations.nodes:
        node.meta = {}
    module = fx.GraphModule(graph, operations)

    def run(*given: Any) -> Any:
        with ExitStack() as stack:  # backward may run under autocast, where forward did not
            for kind in kinds:
                stack.enter_context(torch.autocast(kind, enabled=False))
            results = module(*given)
        return results if isinstance(results, tuple | list) else (results,)

    return run
