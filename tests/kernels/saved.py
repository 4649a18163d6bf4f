"""Bytes saved between forward and backward; each storage counts once. They are measured in two independent ways: the
tensors that the graph holds, and the bytes that the allocator has given out and not got back."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from actfit.kernels.memory.compiled import nodes, saved_of

# All methods, with their options.
METHODS = {
    "invact": {"method": "invact"},
    "fewbit": {"method": "fewbit", "bits": 3},
    "forward-ad": {"method": "forward-ad"},
    "invact-precision-bit": {"method": "invact-precision-bit"},
}
each_method = pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)


def in_graph(output: Tensor, without: Iterable[Tensor] = ()) -> list[Tensor]:
    """The tensors that the graph of `output` saves, one for each storage, except the storages of `without`.

    They are read from the nodes, as saved-tensor hooks do not see all tensors that compiled functions save.
    """
    seen = {tensor.untyped_storage()._cdata for tensor in without}
    tensors = []
    for node in nodes(output):
        for tensor in saved_of(node):
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
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        output = forward(*args)
    return output, sum(event.self_cpu_memory_usage for event in seen.events())
