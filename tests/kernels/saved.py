"""Bytes saved between forward and backward; each storage counts once. They are measured in two independent ways: the
tensors that the graph holds, and the bytes that the allocator has given out and not got back."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from torch import Tensor
from torch.autograd.graph import Node
from torch.profiler import ProfilerActivity, profile

# All methods, with their options.
METHODS = {
    "invact": {"method": "invact"},
    "fewbit": {"method": "fewbit", "bits": 3},
    "forward-ad": {"method": "forward-ad"},
    "invact-precision-bit": {"method": "invact-precision-bit"},
}
each_method = pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _tensors(element)


def _nodes(output: Tensor) -> Iterator[Node]:
    waiting, seen = [output.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]


def in_graph(output: Tensor, without: Iterable[Tensor] = ()) -> list[Tensor]:
    """The tensors that the graph of `output` saves, one for each storage, except the storages of `without`.

    They are read from the nodes, as saved-tensor hooks do not see all tensors that compiled functions save.
    """
    seen = {tensor.untyped_storage()._cdata for tensor in without}
    tensors = []
    for node in _nodes(output):
        names = [name for name in dir(node) if name.startswith("_saved_")]
        for name in [*names, "saved_tensors"]:
            for tensor in _tensors(getattr(node, name, None)):
                storage = tensor.untyped_storage()._cdata
                if storage not in seen:
                    seen.add(storage)
                    tensors.append(tensor)
    return tensors


def bytes_in_graph(output: Tensor, without: Iterable[Tensor] = ()) -> int:
    """The bytes of the storages of `in_graph`."""
    return sum(tensor.untyped_storage().nbytes() for tensor in in_graph(output, without))


def bytes_allocated(forward: Callable[..., Tensor], *args: Any) -> tuple[Tensor, int]:
    """The result of `forward`, and the bytes of CPU memory that it allocated and did not free, with the output's."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:  # else 2.10 warns
        output = forward(*args)
    return output, sum(event.self_cpu_memory_usage for event in seen.events())
