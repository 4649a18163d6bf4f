"""Trial runs that leave a model unchanged: on a copy with fake tensors, or for real on copies of its buffers."""

import copy
import gc
import logging
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import _lru_cache_wrapper
from typing import Any

import torch
from torch import Tensor, nn

from actfit.kernels import private
from actfit.kernels.memory.storages import operand_storages, storages
from actfit.kernels.modes import DispatchMode

_CONTAINERS = ("_parameters", "_buffers", "_modules")


@contextmanager
def on_fakes(model: nn.Module, *more: Any) -> Iterator[tuple[Any, ...]]:
    """A deep copy of the model and of `more`, in which tensors are fake: they have no memory.

    So anything that forward stores in attributes, lists and objects is freed with the copy, whose modules lose their
    attributes in the end: a graph stored there may refer to the module in turn, as that of a checkpoint does. Tensors
    on "meta" become fake ones on the CPU, as operations take other code paths for "meta".
    """
    inputs = [leaf for leaf in private.tree_leaves(more) if isinstance(leaf, Tensor)]
    real = [*model.parameters(), *model.buffers(), *inputs]
    modes = (tensor.fake_mode for tensor in real if private.is_fake(tensor))
    mode = next(modes, None) or private.FakeTensorMode(allow_non_fake_inputs=True)
    memo: dict[int, Any] = {id(tensor): _fake(tensor, mode) for tensor in real}
    for stored in (value for module in _plain(model) for value in vars(module).values() if isinstance(value, Tensor)):
        if not stored.is_leaf:  # as weight_norm's: what copies it looks for its gradient, of which torch warns
            memo[id(stored)] = _fake(stored.detach().requires_grad_(), mode)
    with _random_numbers(), quiet():
        with private.FakeCopyMode(mode):
            copied = copy.deepcopy((model, *more), memo)
        try:
            with mode, unpacked():
                yield copied
        finally:
            own = set(model.modules())  # a model may say how it is copied
            for module in [module for module in _plain(copied[0]) if module not in own]:
                vars(module).clear()


def hides_memory(model: nn.Module) -> bool:
    """Whether fake tensors do not show all that it saves: the workspaces of oneDNN's LSTM and cuDNN's layers."""
    return any(
        isinstance(module, nn.LSTM) or (isinstance(module, nn.RNNBase) and next(module.parameters()).is_cuda)
        for module in model.modules()
    )


class _Writes(DispatchMode):
    """Notes in `before` the numbers of parameters that operations write to while it is entered."""

    def __init__(self, model: nn.Module) -> None:
        self.before: dict[nn.Parameter, Tensor] = {}
        self._of = {storage._cdata: p for p in model.parameters() for storage in storages(p)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema, kwargs = getattr(func, "_schema", None), kwargs or {}
        if schema is not None and schema.is_mutable:
            given = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
            written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
            for storage in operand_storages([given.get(name) for name in written]):
                if (p := self._of.get(storage._cdata)) is not None and p not in self.before:
                    self.before[p] = p.detach().clone()
        return func(*args, **kwargs)


def _restore(before: Mapping[nn.Parameter, Tensor]) -> None:
    for p, numbers in before.items():
        p.data.copy_(numbers)


@contextmanager
def noting_writes(model: nn.Module) -> Iterator[Mapping[nn.Parameter, Tensor]]:
    """Gives parameters that forward writes to, as codebooks, with the numbers that they had and get back afterwards."""
    writes = _Writes(model)
    try:
        with writes:
            yield writes.before
    finally:
        _restore(writes.before)


@contextmanager
def on_copies(model: nn.Module, written: Iterable[nn.Parameter] = ()) -> Iterator[None]:
    """Runs a model with its own parameters and copies of its buffers.

    Restores afterwards every attribute of every module: flags, buffers, and tensors that forward stores there; and the
    numbers of parameters that it is known to write to.
    """
    copies: dict[int, Tensor] = {}
    before = {p: p.detach().clone() for p in written}
    states = []
    for module in _plain(model):
        attributes = vars(module)
        states.append((attributes, dict(attributes), {name: dict(attributes[name]) for name in _CONTAINERS}))
    try:
        with _random_numbers(), forked_random():
            for attributes, *_ in states:
                for name, buffer in attributes["_buffers"].items():
                    if buffer is not None:
                        attributes["_buffers"][name] = copies.setdefault(id(buffer), buffer.detach().clone())
            yield
    finally:
        _restore(before)
        for attributes, own, containers in states:
            attributes.clear()
            attributes.update(own)
            for name, members in containers.items():
                attributes[name].clear()
                attributes[name].update(members)


def forked_random() -> AbstractContextManager[None]:
    """As torch.random.fork_rng, but it starts no CUDA, as for a model on the CPU, and warns of no number of GPUs."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    forked: AbstractContextManager[None] = torch.random.fork_rng(gpus if torch.cuda.is_available() else None)
    return forked


def random_states() -> list[Tensor]:
    """The states of PyTorch's random numbers, on the CPU and on all GPUs in use."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]


def train(model: nn.Module) -> None:
    """Put all modules into training mode, without calling the model's own `train`, which may do more."""
    for module in model.modules():
        module.training = True


def _plain(model: nn.Module) -> list[nn.Module]:
    """Modules except scripted ones, which have no Python attributes."""
    return [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]


@contextmanager
def _random_numbers() -> Iterator[None]:
    """Restores the random states of Python and NumPy afterwards."""
    numpy = sys.modules.get("numpy")
    states = random.getstate(), numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        random.setstate(states[0])
        if numpy is not None and states[1] is not None:
            numpy.random.set_state(states[1])


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps torch from logging failures on fake tensors, for which it raises anyway."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def unpacked() -> Iterator[None]:
    """Makes transformers treat each row as one sequence. It reads positions to see whether several are packed into a
    row; fake tensors have no values, so it would make and save masks that a real run does not have."""
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


def forget_fakes(alive: Callable[[], Any]) -> bool:
    """Clear functools caches that hold fake tensors, if some are alive; True if none are alive afterwards."""
    for generation in (1, 2):
        gc.collect(generation)
        if not alive():
            return True
    for value in gc.get_objects():
        if type(value) is _lru_cache_wrapper and _holds_fakes(value):
            value.cache_clear()
    gc.collect()
    return not alive()


def _holds_fakes(cached: Any) -> bool:
    # A cache's results are two or three references away; a result may be a tuple or a list of tensors.
    values = gc.get_referents(cached)
    for _ in range(3):
        if any(private.is_fake(value) for value in values):
            return True
        values = gc.get_referents(*(value for value in values if not isinstance(value, type) and not callable(value)))
    return any(private.is_fake(value) for value in values)


def _fake(tensor: Tensor, mode: Any) -> Tensor:
    if private.is_fake(tensor):
        return tensor
    if tensor.device.type != "meta":
        return mode.from_tensor(tensor, static_shapes=True)
    with mode:
        fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
    return fake.requires_grad_(tensor.requires_grad)
