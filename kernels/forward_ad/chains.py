"""What is known of a chain in eager code while it grows: its source, and what autograd saves of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from kernels.forward_ad.core import Gate

_KEY = "actfit.forward_ad"
Place = tuple[Node | int, int]
PLAIN = (Tensor, nn.Parameter, FakeTensor)


@dataclass(eq=False)
class Period:
    """From entering the mode to leaving it. No chain outlives it: outside nobody sees what is done to its tensors."""

    over: bool = False


def place(tensor: Tensor) -> Place:
    """What tells a tensor's place in the graph from others: its node and number there; of a leaf its own identity."""
    node = tensor.grad_fn
    return (id(tensor), -1) if node is None else (node, tensor.output_nr)


@dataclass(eq=False)
class Source:
    """Where chains begin: a tensor's place in the graph, and handles on it that do not hold its memory."""

    place: Place
    edge: GradientEdge
    gate: Tensor
    anchor: Tensor
    dies: bool  # with the chain, as far as can be told
    period: Period

    @classmethod
    def of(cls, tensor: Tensor, period: Period) -> "Source":
        """A tensor that needs a gradient, as a source."""
        storage = tensor.untyped_storage()
        part = storage.nbytes() > tensor.numel() * tensor.element_size()
        dies = not (tensor.is_leaf or part or _keeps_result(tensor.grad_fn))
        gate, anchor = Gate.apply(tensor)
        return cls(place(tensor), get_gradient_edge(tensor), gate, anchor, dies, period)


def _keeps_result(node: object) -> bool:
    """Whether a node saves the tensor it gives."""
    return any(hasattr(type(node), f"_saved_{name}") for name in ("result", "output", "out"))


@dataclass(eq=False, repr=False)
class Record:
    """A tensor of a chain.

    Attributes
    ----------
    source
        None once the chain is over, and is what it would be without us.
    kept
        Bytes that autograd saves of the operation that gave the tensor, by storage.
    parents
        The records of the operands.
    used
        Whether the chain goes on from here.
    bypassed
        Whether some gradients do not come by here any more.
    watched
        Whether it has a hook.
    """

    source: Source | None
    kept: dict[Any, int] = field(default_factory=dict)
    parents: Sequence["Record"] = ()
    used: bool = False
    bypassed: bool = False
    watched: bool = False

    @property
    def open_source(self) -> Source | None:
        """The source of a chain that can still go on from here."""
        return None if self.source is None or self.source.period.over else self.source

    @property
    def before(self) -> list["Record"]:
        """Those of the chain from its source up to here, without this."""
        found: dict[int, Record] = {}
        waiting = list(self.parents)
        while waiting:
            one = waiting.pop()
            if id(one) not in found:
                found[id(one)] = one
                waiting += one.parents
        return list(found.values())

    def bypass(self) -> None:
        """Gradients go past all before it from now on."""
        for one in self.before:
            one.bypassed = True

    def close(self) -> None:
        """The chain stays as it is: who goes on from a tensor of it begins another."""
        for one in [*self.before, self]:
            one.source, one.kept = None, {}


def record(tensor: Tensor) -> Record | None:
    """That of a tensor of a chain, None of any other.

    It lies at the tensor's node in the graph, not at the tensor: in-place changes give a tensor another node, and
    tensors are saved and copied without it.
    """
    if tensor._is_view():  # of no chain; and torch may be at work on its node just now, and wait for itself
        return None
    node = tensor.grad_fn
    return None if node is None else node.metadata.get(_KEY)


def source_of(tensor: Tensor) -> Source | None:
    """That of the chain which goes on from a tensor, None where a chain would begin."""
    it = record(tensor)
    return None if it is None else it.open_source


def note(tensor: Tensor, it: Record) -> None:
    """Give a tensor with a node a record."""
    if (node := tensor.grad_fn) is not None:
        node.metadata[_KEY] = it


def alike(one: Tensor, first: Tensor) -> bool:
    """Whether a tensor is a plain one of real numbers, and like the first."""
    return (
        type(one) in PLAIN
        and not one.is_nested
        and one.shape == first.shape
        and one.device == first.device
        and one.layout == torch.strided
        and one.is_floating_point()
    )


def kept(what: str, tensors: Sequence[Tensor], result: Tensor, source: Source) -> dict[Any, int]:
    """Bytes that autograd saves of an operation, by storage, as far as they die with the chain.

    Tensors that need no gradient are somebody else's, but for truth values, which are the results of comparisons.

    Parameters
    ----------
    what
        What is saved of the operation, see `kernels.forward_ad.operations`.
    tensors, result
        The operands, and what the operation gave.
    source
        Of the chain.
    """
    needing = [one for one in tensors if one.requires_grad]
    sizes: dict[Any, int] = {}
    match what:
        case "input":
            keeping = needing[:1]
        case "output":
            keeping = [result]
        case "operands" | "quotient" if len(tensors) > 1:
            first, second = tensors[:2]
            keeping = [first] * second.requires_grad + [second] * (first.requires_grad or what == "quotient")
        case "mask":
            keeping = [one for one in tensors if not one.dtype.is_floating_point]
            if not keeping:  # of dropout: one byte on a GPU, a factor on the CPU
                sizes[object()] = result.numel() * (1 if result.is_cuda else result.element_size())
        case "hidden":
            keeping = needing[:1]
            sizes[object()] = result.numel() * result.element_size()
        case _:
            keeping = []
    for one in keeping:
        dies = not one.dtype.is_floating_point or (one.requires_grad and (source.dies or source_of(one) is not None))
        if dies or one is result:
            sizes[one.untyped_storage()._cdata] = one.untyped_storage().nbytes()
    return sizes
