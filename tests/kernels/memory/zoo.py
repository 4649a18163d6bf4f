"""Bytes that models of the zoo keep, by a count that knows nothing of ours."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

from kernels.memory.isolated import unpacked


@pytest.fixture
def fake() -> Iterator[FakeTensorMode]:
    with FakeTensorMode() as mode:
        yield mode


def tensors(model: nn.Module, *inputs: object) -> list[Tensor]:
    leaves = [*model.parameters(), *model.buffers(), *tree_leaves(inputs)]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def kept_bytes(model: nn.Module, args: tuple, kwargs: dict) -> int:
    """Bytes that go through the pack hook in forward: each storage once, inputs too, parameters and buffers not."""
    seen = {id(one.untyped_storage()): one.untyped_storage() for one in tensors(model)}
    own = set(seen)

    def pack(tensor: Tensor) -> Tensor:
        seen[id(tensor.untyped_storage())] = tensor.untyped_storage()
        return tensor

    fake = isinstance(next(model.parameters()), FakeTensor)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), unpacked() if fake else nullcontext():
        model(*args, **kwargs)
    return sum(storage.nbytes() for key, storage in seen.items() if key not in own)
