"""What autograd saves between forward and backward, recorded in two independent ways.

Saved-tensor hooks see each tensor that an operation saves, and which operation saves it. A dispatch mode sees each new
storage, also those that hooks cannot see, such as tensors put on a `ctx`. Storages are told apart by identity, not by
address: an address is used again after a storage is freed, and that of a fake tensor is 0.
"""

import gc
import sys
from collections.abc import Callable, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Self
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from actfit.kernels import private
from actfit.kernels.errors import KernelError
from actfit.kernels.memory.compiled import is_generated, outside_graphs
from actfit.kernels.memory.saved import Saved, SavedTensor, Saver
from actfit.kernels.memory.storages import addresses, operand_storages, storages
from actfit.kernels.modes import DispatchMode, fakes_are_made

GRAPH = "CompiledFunction"  # what saves the tensors of a captured graph
_COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.clone.default)


class _Packed:
    """What autograd holds instead of a tensor that it saves, until backward has used it."""

    __slots__ = ("__weakref__", "parameter", "saver", "tensor")

    def __init__(self, tensor: Tensor, saver: Saver) -> None:
        base = tensor._base if tensor._is_view() else tensor
        self.parameter = isinstance(base, nn.Parameter)
        self.tensor = tensor.detach() if tensor.requires_grad else tensor  # else an output would hold its own graph
        self.saver = saver


def _unpack(packed: _Packed | Tensor) -> Tensor:
    return packed.tensor if isinstance(packed, _Packed) else packed


class _Calls(TorchFunctionMode):
    """Collects the names of torch's functions that are running."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.running.append(getattr(func, "__name__", str(func)).strip("_"))
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.running.pop()


class Births(DispatchMode):
    """Records each new storage, and which are copies of those in `parameters`; raises for those in `foreign`."""

    def __init__(self, parameters: set[int], foreign: Set[int], scopes: list[str]) -> None:
        self.born: dict[int, tuple[StorageWeakRef, Saver]] = {}
        self.parameters, self.foreign, self.scopes = parameters, foreign, scopes
        self.copies: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {storage._cdata for storage in operand_storages((args, kwargs))}
        if before & self.foreign:
            raise RuntimeError("what runs is not this model")
        result = func(*args, **(kwargs or {}))
        for storage in operand_storages(result):
            # The weak reference in `born` keeps the address of a freed storage from being used again.
            if storage._cdata in before or storage._cdata in self.born:
                continue
            saver = Saver(self.scopes[-1], func.__name__.partition(".")[0])
            self.born[storage._cdata] = StorageWeakRef(storage), saver
            if func in _COPIES and before & self.parameters:
                self.copies.add(storage._cdata)
        return result

    def sizes(self) -> dict[int, int]:
        """Bytes of the storages that are alive."""
        made = torch.UntypedStorage._new_with_weak_ptr
        living = {address: made(reference.cdata) for address, (reference, _) in self.born.items()}
        return {address: storage.nbytes() for address, storage in living.items() if storage is not None}


@dataclass
class Recorder:
    """A context manager for a forward pass; then `saved(output)` gives what is saved, as long as the output is alive.

    Of compiled code it sees nothing: use `saved_bytes`. It raises KernelError for a model that
    `compress(..., compiled=True)` changed, unless tensors are fake.

    Attributes
    ----------
    model
        Its modules are named in the result; its parameters and buffers do not count as activations.
    foreign
        Keys of storages that operations must not use; RuntimeError is raised if one does.
    """

    model: nn.Module | None = None
    foreign: Set[int] = frozenset()

    def __post_init__(self) -> None:
        # What is alive, by the ids of objects, in the order in which it was saved.
        self._packed: WeakValueDictionary[int, _Packed] = WeakValueDictionary()
        self._scopes = [""]
        self._calls = _Calls()
        own = [] if self.model is None else [*self.model.parameters(), *self.model.buffers()]
        self._parameters = addresses(own)
        self.births = Births(self._parameters, self.foreign, self._scopes)
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        if self.model is not None and any(map(is_generated, self.model.modules())) and not fakes_are_made():
            raise KernelError(
                "model must not be compiled for a Recorder, which sees nothing of what compiled code allocates, got one"
                " that compress(..., compiled=True) changed; use saved_bytes(model, inputs)"
            )
        with ExitStack() as stack:
            for name, module in () if self.model is None else outside_graphs(self.model):
                if isinstance(module, torch.jit.ScriptModule):  # has no hooks; what it saves counts for its caller
                    continue
                stack.callback(module.register_forward_pre_hook(partial(self._enter, name), prepend=True).remove)
                stack.callback(module.register_forward_hook(self._leave, always_call=True).remove)
            stack.enter_context(private.functions_seen())
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack))
            stack.enter_context(self._calls)
            stack.enter_context(self.births)
            if gc.isenabled():
                gc.disable()  # garbage of this forward stays in the youngest generation, which is collected fast
                stack.callback(gc.enable)
            self._exit = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self._exit.close()
        # The graph holds the recorder, and the model may hold the graph: a cycle through torch that is never collected.
        self.model = None
        if self._error is not None and kind is None:
            raise self._error

    def saved(self, output: Any = None) -> Saved:
        """What is saved now.

        Parameters
        ----------
        output
            The result of forward: its tensors do not count, unless autograd saves them, too. Without it, tensors that
            hooks do not see are not counted, as they cannot be told from results that are still in use.
        """
        gc.collect(1)
        born, copies = self.births.born, self.births.copies
        living = self.births.sizes()
        alive = set(living)
        by_storage: dict[int, list[_Packed]] = {}
        sizes: dict[int, int] = {}
        for pack in list(self._packed.values()):
            for storage in storages(pack.tensor):
                by_storage.setdefault(storage._cdata, []).append(pack)
                sizes[storage._cdata] = storage.nbytes()
        own = self._parameters | {key for key, packs in by_storage.items() if any(pack.parameter for pack in packs)}
        saved = [
            _saved_tensor(sizes[key], packs, born[key][1]) for key, packs in by_storage.items() if key in alive - copies
        ]
        results = addresses(output)
        unseen = alive - set(by_storage) - results - copies if output is not None else set()
        saved += [SavedTensor(living[key], (), "", (born[key][1],), seen=False) for key in unseen if living[key]]
        return Saved(
            tuple(sorted(saved, key=lambda tensor: -tensor.bytes)),
            inputs=sum(sizes[key] for key in by_storage if key not in born and key not in own),
            parameters=sum(sizes[key] for key in by_storage if key not in born and key in own),
            copies=sum(living[key] for key in alive & copies - results),
        )

    def _enter(self, name: str, *_: Any) -> None:
        self._scopes.append(name)

    def _leave(self, *_: Any) -> None:
        self._scopes.pop()

    def _pack(self, tensor: Tensor) -> _Packed | Tensor:
        try:
            packed = _Packed(tensor, Saver(self._scopes[-1], self._saved_by(sys._getframe(1))))
            self._packed[id(packed)] = packed
            return packed
        except BaseException as error:  # torch would abort the process: it is raised when forward is over
            self._error = self._error or error
            return tensor

    _pack.keeps_tensors = True  # type: ignore[attr-defined]

    def _saved_by(self, frame: FrameType) -> str:
        """The autograd.Function that saves, from the frame that called the hook; else torch's function."""
        if (applied := private.function_of(frame)) is not None:
            function, args = applied
            saved_by: Callable[..., str] | None = getattr(function, "saved_by", None)
            return saved_by(*args) if saved_by else str(function.__name__)
        return self._calls.running[-1] if self._calls.running else ""


def _saved_tensor(size: int, packs: Sequence[_Packed], maker: Saver) -> SavedTensor:
    """The record of one storage, from all tensors in it that were saved; of a graph's it says what made it."""
    first = packs[0].tensor
    savers = tuple(dict.fromkeys(maker if pack.saver.operation == GRAPH else pack.saver for pack in packs))
    return SavedTensor(size, tuple(first.shape), str(first.dtype).removeprefix("torch."), savers)
