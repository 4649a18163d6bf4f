"""Shared by all front ends: the derivative of a chain, by the chain's own backward, and the node that saves it.

A chain consists of element-wise operations on one source. So d end[i] / d source[j] is 0 for i ≠ j, and the gradient
of the source for an upstream gradient of ones is the derivative itself: backward gives what forward mode would.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node, saved_tensors_hooks

from kernels.autograd import once_differentiable
from kernels.methods.forward_derivative import ForwardDerivative
from kernels.methods.method import SavedBy


def derivatives_of(ends: Sequence[Tensor], source: Tensor) -> list[Tensor]:
    """d end / d source for each end of a chain, in the source's dtype; frees what autograd saved for the chain.

    Raises RuntimeError where backward would.
    """
    gradients = []
    for end in ends:
        with torch.no_grad(), _without_autocast(end):
            ones = end.new_ones(()).expand(end.shape)
            gradients += torch.autograd.grad(end, [source], ones, retain_graph=end is not ends[-1])
    return gradients


Targets = list[tuple[int, torch.dtype] | None]  # for each result of a node: its consumer and dtype; None: unused


def backward_order(end: Node, source: tuple[Node, int], dtype: torch.dtype) -> tuple[list[Node], list[Targets]]:
    """The nodes of a chain, without the source's, in the order of backward; and the targets of their results.

    Parameters
    ----------
    end, source
        The node at the end; the source's node with the number of its result.
    dtype
        The dtype of the source.

    Returns
    -------
    nodes, targets
        A target is an index into `nodes`, or their number for the source.

    Raises
    ------
    ValueError
        For a chain that has a second source.
    """
    nodes: list[Node] = []  # each before those that its gradient comes from
    seen: set[Node | None] = {end, None}  # None stands for operands that need no gradient
    waiting = [(end, iter(end.next_functions))]
    while waiting:
        node, following = waiting[-1]
        new, nr = next((edge for edge in following if edge[0] not in seen and edge != source), (None, 0))
        if new is None:
            nodes.append(node)
            waiting.pop()
        elif nr or not new.next_functions:
            raise ValueError(f"the chain has another source, {new.name()}")
        else:
            seen.add(new)
            waiting.append((new, iter(new.next_functions)))
    nodes.reverse()
    places = {node: index for index, node in enumerate(nodes)}

    def target(following: Node | None, nr: int) -> tuple[int, torch.dtype] | None:
        if following is None:
            return None
        return (
            (len(nodes), dtype)
            if (following, nr) == source
            else (places[following], following._input_metadata[nr].dtype)
        )

    return nodes, [[target(*edge) for edge in node.next_functions] for node in nodes]


def derivative_by_nodes(nodes: list[Node], targets: list[Targets], ones: Tensor) -> Tensor:
    """d end / d source by a chain's own nodes, given ones in the shape of its end; see `backward_order`.

    Each node is dropped as soon as it has run, and what it saved is freed if nobody else holds it; `nodes` ends empty.
    Raises RuntimeError where backward would.
    """
    gradients: list[Tensor | None] = [ones, *[None] * len(nodes)]
    nodes.reverse()
    with torch.no_grad(), _without_autocast(ones):
        for index, following in enumerate(targets):
            input_gradients = nodes.pop()(gradients[index])
            gradients[index] = None
            results = [input_gradients] if isinstance(input_gradients, Tensor) else list(input_gradients)
            del input_gradients
            for target in reversed(following):
                result = results.pop()
                if target is not None and result is not None:
                    at, dtype = target
                    total, result = gradients[at], result if result.dtype == dtype else result.to(dtype)
                    gradients[at] = result if total is None else total + result
                    del total
                del result
    derivative = gradients[-1]
    if derivative is None:
        raise RuntimeError("the chain does not depend on its source")
    return derivative


def _without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """Turns autocast off, as backward runs without it."""
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def gradient_of_source(
    gradients: Sequence[Tensor | None], derivatives: Sequence[Tensor], anchor: Tensor
) -> Tensor | None:
    """The sum of gradient * derivative over the ends that have a gradient, differentiable no further."""
    total: Tensor | None = None
    for gradient, derivative in zip(gradients, derivatives, strict=True):
        if gradient is not None:
            term = gradient * derivative
            total = term if total is None else total + term
    return None if total is None else once_differentiable(total.to(derivatives[0].dtype), anchor)


class Gate(torch.autograd.Function):
    """Gives a tensor that stands at a source's place in the graph without holding its memory: one element, expanded.

    The second result, of no elements, anchors a gradient to the source, see `once_differentiable`.
    """

    @staticmethod
    def forward(ctx: Any, source: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return source.new_empty(()).expand(source.shape), source.new_empty(0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: None) -> Tensor | None:
        return gradient


class CollapsedChain(torch.autograd.Function):
    """The single node that replaces a chain's nodes; `end` gets it in place. It saves only the derivative."""

    @staticmethod
    def forward(ctx: Any, end: Tensor, gate: Tensor, anchor: Tensor, derivative: Tensor) -> Tensor:
        ctx.mark_dirty(end)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(anchor, derivative)
        return end

    @staticmethod
    def saved_by(end: Tensor, *_: Tensor) -> SavedBy:
        """For the recorder of memory."""
        return SavedBy("chain", ForwardDerivative)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[None, Tensor | None, None, None]:
        anchor, derivative = ctx.saved_tensors
        return None, gradient_of_source([gradient], [derivative], anchor), None, None


class Failed(torch.autograd.Function):
    """The node of a chain whose backward fails: it raises the chain's own error when backward reaches it."""

    @staticmethod
    def forward(ctx: Any, end: Tensor, gate: Tensor, error: RuntimeError) -> Tensor:
        ctx.mark_dirty(end)
        ctx.error = error
        return end

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> None:
        raise ctx.error


class ChainFunction(torch.autograd.Function):
    """A chain as a function: runs it, saves the derivative of each result, and returns an anchor and the results."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, run: Callable[[Tensor], Sequence[Tensor]]) -> tuple[Tensor, ...]:
        # Outer hooks on saved tensors must see only the derivatives; else checkpointing would run all of it again.
        with torch.enable_grad(), saved_tensors_hooks(as_it_is, as_it_is):
            inside = source.detach().requires_grad_()
            ends = run(inside)
            derivatives = derivatives_of(ends, inside)
        anchor = source.new_empty(0)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(anchor, *derivatives)
        return anchor, *(end.detach() for end in ends)

    @staticmethod
    def saved_by(source: Tensor, run: Callable[[Tensor], Sequence[Tensor]]) -> SavedBy:
        """For the recorder of memory."""
        return SavedBy("chain", ForwardDerivative)

    @staticmethod
    def backward(ctx: Any, _: None, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        anchor, *derivatives = ctx.saved_tensors
        return gradient_of_source(gradients, derivatives, anchor), None


def run_region(run: Callable[[Tensor], Sequence[Tensor]], source: Tensor) -> Sequence[Tensor]:
    """run(source), which is element-wise in source; saves one derivative for each result and nothing else."""
    if not (torch.is_grad_enabled() and source.requires_grad):
        return run(source)
    results: tuple[Tensor, ...] = ChainFunction.apply(source, run)
    return results[1:]


def as_it_is(tensor: Tensor) -> Tensor:
    """A hook on saved tensors that changes nothing, but hides them from outer hooks."""
    return tensor
