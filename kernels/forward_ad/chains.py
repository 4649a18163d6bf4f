"""The records of a chain in eager code while it grows: its source, and what autograd saves for it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from kernels.forward_ad.core import Gate
from kernels.torch_state import is_plain_type

_KEY = "actfit.forward_ad"
Place = tuple[Node | int, int]


@dataclass(eq=False)
class Period:
    """The time from entering the mode to leaving it. A chain ends with it, as later operations are not observed."""

    over: bool = False


def place(tensor: Tensor) -> Place:
    """Identifies a tensor's place in the graph: its node and output number; for a leaf, the tensor's own identity."""
    node = tensor.grad_fn
    return (id(tensor), -1) if node is None else (node, tensor.output_nr)


@dataclass(eq=False)
class Source:
    """Where chains begin: a tensor's place in the graph, and tensors that stand there without holding its memory."""

    place: Place
    edge: GradientEdge
    gate: Tensor
    anchor: Tensor
    dies: bool  # whether its memory is freed with the chain, as far as can be told
    period: Period

    @classmethod
    def of(cls, tensor: Tensor, period: Period) -> "Source":
        """A tensor that needs a gradient, as a source."""
        storage = tensor.untyped_storage()
        part = storage.nbytes() > tensor.numel() * tensor.element_size()
        dies = not (tensor.is_leaf or part or _saves_result(tensor.grad_fn))
        gate, anchor = Gate.apply(tensor)
        return cls(place(tensor), get_gradient_edge(tensor), gate, anchor, dies, period)


def _saves_result(node: object) -> bool:
    """Whether a node saves its own result."""
    return any(hasattr(type(node), f"_saved_{name}") for name in ("result", "output", "out"))


@dataclass(eq=False, repr=False)
class Record:
    """A tensor of a chain.

    Attributes
    ----------
    source
        The chain's source; None once the chain has ended unchanged.
    saved
        Bytes that autograd saves for the operation that computed the tensor, by storage.
    parents
        The records of the operands.
    used
        Whether the chain continues from this tensor.
    bypassed
        Whether some gradients no longer pass through this tensor.
    watched
        Whether it has a hook.
    """

    source: Source | None
    saved: dict[Any, int] = field(default_factory=dict)
    parents: Sequence["Record"] = ()
    used: bool = False
    bypassed: bool = False
    watched: bool = False

    @property
    def open_source(self) -> Source | None:
        """The source, if the chain can still continue from here."""
        return None if self.source is None or self.source.period.over else self.source

    @property
    def before(self) -> list["Record"]:
        """The records of the chain from its source up to this one, without this one."""
        records: dict[int, Record] = {}
        waiting = list(self.parents)
        while waiting:
            record = waiting.pop()
            if id(record) not in records:
                records[id(record)] = record
                waiting += record.parents
        return list(records.values())

    def bypass(self) -> None:
        """From now on gradients skip all records before this one."""
        for record in self.before:
            record.bypassed = True

    def close(self) -> None:
        """Leave the chain as it is: an operation on one of its tensors begins a new chain."""
        for record in [*self.before, self]:
            record.source, record.saved = None, {}


def record_of(tensor: Tensor) -> Record | None:
    """The record of a tensor of a chain; None for any other tensor.

    It is attached to the tensor's node in the graph, not to the tensor: in-place changes give a tensor another node,
    and a tensor is saved and copied without its record.
    """
    if tensor._is_view():  # never in a chain; and asking for its node while torch updates it would deadlock
        return None
    node = tensor.grad_fn
    return None if node is None else node.metadata.get(_KEY)


def source_of(tensor: Tensor) -> Source | None:
    """The source of the chain that continues from a tensor; None where a new chain would begin."""
    record = record_of(tensor)
    return None if record is None else record.open_source


def attach_record(tensor: Tensor, record: Record) -> None:
    """Attach a record to a tensor's node, if it has a node."""
    if (node := tensor.grad_fn) is not None:
        node.metadata[_KEY] = record


def alike(tensor: Tensor, first: Tensor) -> bool:
    """Whether a tensor is plain, of real numbers, and of the first one's shape and device."""
    return (
        is_plain_type(tensor)
        and not tensor.is_nested
        and tensor.shape == first.shape
        and tensor.device == first.device
        and tensor.layout == torch.strided
        and tensor.is_floating_point()
    )


def saved_sizes(saved_kind: str, tensors: Sequence[Tensor], result: Tensor, source: Source) -> dict[Any, int]:
    """Bytes that autograd saves for an operation, by storage, as far as they are freed with the chain.

    Tensors that need no gradient are not counted, except for truth values, which are the results of comparisons.

    Parameters
    ----------
    saved_kind
        What is saved for the operation, see `kernels.forward_ad.operations`.
    tensors, result
        The operands and the result of the operation.
    source
        The source of the chain.
    """
    differentiated = [tensor for tensor in tensors if tensor.requires_grad]
    sizes: dict[Any, int] = {}
    match saved_kind:
        case "input":
            saved = differentiated[:1]
        case "output":
            saved = [result]
        case "operands" | "quotient" if len(tensors) > 1:
            first, second = tensors[:2]
            saved = [first] * second.requires_grad + [second] * (first.requires_grad or saved_kind == "quotient")
        case "mask":
            saved = [tensor for tensor in tensors if not tensor.dtype.is_floating_point]
            if not saved:  # of dropout: one byte on a GPU, a factor on the CPU
                sizes[object()] = result.numel() * (1 if result.is_cuda else result.element_size())
        case "hidden":
            saved = differentiated[:1]
            sizes[object()] = result.numel() * result.element_size()
        case _:
            saved = []
    for tensor in saved:
        dies = not tensor.dtype.is_floating_point or (
            tensor.requires_grad and (source.dies or source_of(tensor) is not None)
        )
        if dies or tensor is result:
            sizes[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
    return sizes
