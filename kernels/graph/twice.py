"""Gradients of gradients of a captured call: by the captured operations themselves, as stock computes them.

Where somebody builds a graph of backward (`create_graph`), the call runs once more, by PyTorch's own operations in
eager mode, and autograd differentiates that, as often as is asked for. Of what the call was given only weak references
are kept: weights live in the model, and what forward saves as it is lives with it. Where something is gone, as a tensor
that is stored in a few bits, or was changed since, or where the call draws random numbers or ran under autocast, its
gradients are differentiable once, and what differentiates them again is refused.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from actfit.kernels import private
from actfit.kernels.memory.isolated import forked_random

Gradients = tuple[Tensor | None, ...]


class Call:
    """What one call was given, held weakly; `gradients` runs it once more."""

    def __init__(self, run: Callable[..., Any], given: Sequence[Any]) -> None:
        self._run, self._versions = run, list(map(_version, given))
        self._given = [private.TensorWeakRef(x) if isinstance(x, Tensor) else (lambda x=x: x) for x in given]

    def gradients(self, of_results: Sequence[Tensor | None], wanted: Sequence[bool]) -> Gradients | None:
        """Those of what was given, by those of the results, differentiable again; None: it cannot run once more.

        wanted: which of the inputs get one.
        """
        given = [x() for x in self._given]
        if list(map(_version, given)) != self._versions:  # changed, or gone
            return None
        inputs = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
        is_in = {id(x) for x in inputs}
        if [id(x) in is_in for x in given] != list(wanted) or len(is_in) < len(inputs):
            return None  # PyTorch gives the graph something else than what it was given
        with forked_random():
            results, draws = _observed(self._run, given)
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


def _version(x: Any) -> int | None:
    if not isinstance(x, Tensor):
        return None
    return -1 if x.is_inference() else x._version


def once_more(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any] | None:
    """What runs the operations of a captured graph in eager mode; None: under autocast, which is over in backward."""
    kinds = {x.device.type for x in inputs if isinstance(x, Tensor)}
    if any(torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind) for kind in kinds):
        return None
    operations = copy.deepcopy(graph.graph)  # what is compiled next may change it
    for node in operations.nodes:
        node.meta = {}
    run: Callable[..., Any] = fx.GraphModule(graph, operations)
    return run


def _observed(run: Callable[..., Any], given: Sequence[Any]) -> tuple[Sequence[Any], bool]:
    """The results, and whether random numbers were drawn."""
    before = _states(given)
    results = run(*given)
    drawn = any(not torch.equal(a, b) for a, b in zip(before, _states(given), strict=True))
    return (results if isinstance(results, tuple | list) else (results,)), drawn


def _states(given: Sequence[Any]) -> list[Tensor]:
    devices = sorted({x.device.index for x in given if isinstance(x, Tensor) and x.is_cuda})
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(index) for index in devices)]
