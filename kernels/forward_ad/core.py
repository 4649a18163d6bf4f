"""What all front ends share: the derivative of a chain, by the chain's own backward, and the node that saves it.

A chain is made of element-wise operations, from one source. So d end[i] / d source[j] is 0 for i ≠ j, and the
gradient that comes out of it for a gradient of ones is the derivative itself: backward gives what forward mode would.
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
    """d end / d source for each end of a chain, in the source's dtype; what autograd saves of the chain is freed.

    Raises RuntimeError where backward would.
    """
    found = []
    for end in ends:
        with torch.no_grad(), _without_autocast(end):
            ones = end.new_ones(()).expand(end.shape)
            found += torch.autograd.grad(end, [source], ones, retain_graph=end is not ends[-1])
    return found


Targets = list[tuple[int, torch.dtype] | None]  # of each result of a node: where it goes, as what; None: nowhere


def backward_order(end: Node, source: tuple[Node, int], dtype: torch.dtype) -> tuple[list[Node], list[Targets]]:
    """The nodes of a chain as backward goes through them, the source's not among them; and where their results go.

    Parameters
    ----------
    end, source
        The node at the end, and the source's with the number of its result.
    dtype
        The source's.

    Returns
    -------
    nodes, targets
        Where results go is an index into the nodes, or behind the last: the source.

    Raises
    ------
    ValueError
        For a chain that has another source, too.
    """
    nodes: list[Node] = []  # each before those that its gradient comes from
    seen: set[Node | None] = {end, None}  # None: of what needs no gradient
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

    def target(it: Node | None, nr: int) -> tuple[int, torch.dtype] | None:
        if it is None:
            return None
        return (len(nodes), dtype) if (it, nr) == source else (places[it], it._input_metadata[nr].dtype)

    return nodes, [[target(*edge) for edge in node.next_functions] for node in nodes]


def swept(nodes: list[Node], targets: list[Targets], ones: Tensor) -> Tensor:
    """d end / d source by a chain's own nodes, given ones in the shape of its end; see `backward_order`.

    Each node is let go when it is done, and with it what it saved, if nobody else needs it: `nodes` ends up empty.
    Raises RuntimeError where backward would.
    """
    gradients: list[Tensor | None] = [ones, *[None] * len(nodes)]
    nodes.reverse()
    with torch.no_grad(), _without_autocast(ones):
        for index, following in enumerate(targets):
            given = nodes.pop()(gradients[index])
            gradients[index] = None
            results = [given] if isinstance(given, Tensor) else list(given)
            del given
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
    """Backward runs outside of it."""
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def times(gradients: Sequence[Tensor | None], derivatives: Sequence[Tensor], anchor: Tensor) -> Tensor | None:
    """The sum of gradient * derivative over the ends that have a gradient, differentiable no further."""
    total: Tensor | None = None
    for gradient, derivative in zip(gradients, derivatives, strict=True):
        if gradient is not None:
            term = gradient * derivative
            total = term if total is None else total + term
    return None if total is None else once_differentiable(total.to(derivatives[0].dtype), anchor)


class Gate(torch.autograd.Function):
    """A handle on a source's place in the graph that does not hold its memory: it has one element, spread out.

    With it goes a tensor of no elements, which anchors a gradient to the source, see `once_differentiable`.
    """

    @staticmethod
    def forward(ctx: Any, source: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return source.new_empty(()).expand(source.shape), source.new_empty(0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: None) -> Tensor | None:
        return gradient


class CollapsedChain(torch.autograd.Function):
    """The one node that is left of a chain: `end`, changed in place to have it, saves only its derivative."""

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
        return None, times([gradient], [derivative], anchor), None, None


class Failed(torch.autograd.Function):
    """The node of a chain that backward cannot go through: it says so then, as it would have."""

    @staticmethod
    def forward(ctx: Any, end: Tensor, gate: Tensor, error: RuntimeError) -> Tensor:
        ctx.mark_dirty(end)
        ctx.error = error
        return end

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> None:
        raise ctx.error


class ChainFunction(torch.autograd.Function):
    """A chain as a function: runs it, saves the derivative of each result, and gives an anchor before the results."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, run: Callable[[Tensor], Sequence[Tensor]]) -> tuple[Tensor, ...]:
        # Whoever packs what is saved is to see only the derivatives: else checkpointing would run all of it again.
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
        return times(gradients, derivatives, anchor), None


def region(run: Callable[[Tensor], Sequence[Tensor]], source: Tensor) -> Sequence[Tensor]:
    """run(source), which is element-wise in source; saves one derivative for each result and nothing else."""
    if not (torch.is_grad_enabled() and source.requires_grad):
        return run(source)
    results: tuple[Tensor, ...] = ChainFunction.apply(source, run)
    return results[1:]


def as_it_is(tensor: Tensor) -> Tensor:
    """For hooks on saved tensors that do nothing, but keep others from seeing them."""
    return tensor
