"""A model as it stands for a trial run that leaves no trace, and its tensors replaced by fake ones or by copies."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

_CONTAINERS = ("_parameters", "_buffers", "_modules")


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Puts back afterwards every attribute of every module: flags, buffers, and tensors that forward keeps there."""
    kept = []
    for module in model.modules():
        attributes = vars(module)
        kept.append((attributes, dict(attributes), {name: dict(attributes[name]) for name in _CONTAINERS}))
    try:
        yield
    finally:
        for attributes, before, containers in kept:
            attributes.clear()
            attributes.update(before)
            for name, members in containers.items():
                attributes[name].clear()
                attributes[name].update(members)


@contextmanager
def on_fakes(model: nn.Module, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """`args` and `kwargs` with fake tensors, which have no memory, in the place of real ones; and so in the model.

    Tensors on "meta" become fake ones on the CPU: operations take other paths there.
    """
    mode = fake_mode((list(model.parameters()), list(model.buffers()), args, kwargs))
    fakes: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in fakes:
            fakes[id(tensor)] = _fake(tensor, mode)
        return fakes[id(tensor)]

    with unchanged(model):
        replace(model, fake, fake)
        args, kwargs = tree_map_only(Tensor, fake, (args, kwargs))
        with mode, unpacked():
            yield args, kwargs


@contextmanager
def unpacked() -> Iterator[None]:
    """Lets transformers take each row for one sequence. It asks positions whether several are packed into it; fake
    ones cannot tell, and masks would be made and kept that are not there for real."""
    masks = sys.modules.get("transformers.masking_utils")
    name = "find_packed_sequence_indices"
    if masks is None or not hasattr(masks, name):
        yield
        return
    before = getattr(masks, name)
    setattr(masks, name, lambda *_, **__: None)
    try:
        yield
    finally:
        setattr(masks, name, before)


@contextmanager
def on_copies(model: nn.Module) -> Iterator[None]:
    """The model with its own parameters and copies of its buffers, and with random numbers that are drawn again."""
    copies: dict[int, Tensor] = {}
    with unchanged(model), torch.random.fork_rng():
        replace(model, lambda one: one, lambda one: copies.setdefault(id(one), one.detach().clone()))
        yield


def replace(model: nn.Module, parameter: Callable[[Tensor], Tensor], buffer: Callable[[Tensor], Tensor]) -> None:
    """Puts other tensors in the place of all parameters and buffers."""
    for module in model.modules():
        for members, change in ((module._parameters, parameter), (module._buffers, buffer)):
            for name, one in members.items():
                if one is not None:
                    members[name] = change(one)


def fake_mode(values: Any) -> FakeTensorMode:
    """Of the fake tensors in `values`, or a new one."""
    modes = (one.fake_mode for one in tree_leaves(values) if isinstance(one, FakeTensor))
    return next(modes, None) or FakeTensorMode(allow_non_fake_inputs=True)


def _fake(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    if isinstance(tensor, FakeTensor):
        return tensor
    if tensor.device.type != "meta":
        return mode.from_tensor(tensor, static_shapes=True)
    with mode:
        one = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
    return one.requires_grad_(tensor.requires_grad)
