"""What autograd keeps between forward and backward, by two witnesses that know nothing of each other.

Saved-tensor hooks see each tensor that an operation saves, and so tell who saved it. A dispatch mode sees each storage
that is born, and so finds also what hooks cannot see, such as tensors put on a `ctx`. A storage is known by itself: its
address is used again after it is freed, and a fake tensor's is 0.
"""

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Self
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from kernels.memory.saved import Saved, SavedTensor, Saver
from kernels.methods.method import SavedBy

_APPLY = Function.apply.__func__.__code__
_COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.clone.default)


def storages(tensor: Tensor) -> Iterator[torch.UntypedStorage]:
    """Of a tensor; of the inner tensors of a sparse one or a wrapper such as DTensor."""
    if is_traceable_wrapper_subclass(tensor):
        inner = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        for one in inner:
            if isinstance(one, Tensor):  # a DTensor has its mesh there too
                yield from storages(one)
    elif tensor.layout == torch.strided:
        yield tensor.untyped_storage()
    elif tensor.layout == torch.sparse_coo:
        yield from (one.untyped_storage() for one in (tensor._indices(), tensor._values()))
    elif tensor.layout == torch.sparse_csr:
        yield from (one.untyped_storage() for one in (tensor.crow_indices(), tensor.col_indices(), tensor.values()))


def tensors(value: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """All tensors within lists, mappings, and objects' attributes."""
    seen = set() if seen is None else seen
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield leaf
        elif isinstance(leaf, Mapping):  # one that torch does not know to take apart
            yield from tensors(dict(leaf), seen)
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, type | nn.Module) and id(leaf) not in seen:
            seen.add(id(leaf))
            yield from tensors(vars(leaf), seen)


def addresses(values: Any) -> set[int]:
    """What tells the storages of all tensors in `values` from others, as long as they live."""
    return {storage._cdata for one in tensors(values) for storage in storages(one)}


class _Held:
    """What autograd is given in place of a tensor it saves: it dies when autograd lets go of it."""

    __slots__ = ("__weakref__", "order", "parameter", "saver", "tensor", "version")

    def __init__(self, tensor: Tensor, saver: Saver, order: int) -> None:
        base = tensor._base if tensor._is_view() else tensor
        self.parameter = isinstance(base, nn.Parameter)
        self.tensor = tensor.detach()  # an output would hold its own graph
        self.saver, self.order = saver, order
        self.version = self.tensor._version


def _unpack(held: _Held | Tensor) -> Tensor:
    return held.tensor if isinstance(held, _Held) else held


class _Calls(TorchFunctionMode):
    """Keeps the names of torch's functions that run just now."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.running.append(getattr(func, "__name__", str(func)).strip("_"))
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.running.pop()


class Births(TorchDispatchMode):
    """Notes each new storage; and which of them are copies of storages in `parameters`."""

    def __init__(self, parameters: set[int], foreign: set[int], scopes: list[str]) -> None:
        super().__init__()
        self.born: dict[int, tuple[StorageWeakRef, Saver]] = {}
        self.parameters, self.foreign, self.scopes = parameters, foreign, scopes
        self.copies: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {storage._cdata for storage in of_leaves((args, kwargs))}
        if before & self.foreign:
            raise RuntimeError("what runs is not this model")
        result = func(*args, **(kwargs or {}))
        for storage in of_leaves(result):
            # Its entry keeps the address of a dead one from being given out again.
            if storage._cdata in before or storage._cdata in self.born:
                continue
            saver = Saver(self.scopes[-1], func.__name__.partition(".")[0])
            self.born[storage._cdata] = StorageWeakRef(storage), saver
            if func in _COPIES and before & self.parameters:
                self.copies.add(storage._cdata)
        return result

    def sizes(self) -> dict[int, int]:
        """Bytes of those that live."""
        living = {address: reference for address, (reference, _) in self.born.items() if not reference.expired()}
        return {address: _size(reference) for address, reference in living.items()}

    def alive(self) -> bool:
        """Whether any lives."""
        return any(not reference.expired() for reference, _ in self.born.values())


def _size(reference: StorageWeakRef) -> int:
    storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
    return storage.nbytes() if storage is not None else 0


def of_leaves(value: Any) -> Iterator[torch.UntypedStorage]:
    """The storages in what an operation is given or gives."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield from storages(leaf)


@dataclass
class Recorder:
    """A context manager for a forward pass; `saved(output)` says what is kept while its output lives.

    model: whose modules are named in the result, and whose parameters and buffers are not activations. names: further
    modules that the model does not list, by name. foreign: addresses of storages that no operation must touch, or else
    it raises RuntimeError. Under torch.compile use `saved_bytes`.
    """

    model: nn.Module | None = None
    names: Mapping[nn.Module, str] = field(default_factory=dict)
    foreign: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._held: WeakSet[_Held] = WeakSet()
        self._scopes = [""]
        self._calls = _Calls()
        known = [] if self.model is None else [*self.model.parameters(), *self.model.buffers()]
        self._parameters = addresses(known)
        self.births = Births(self._parameters, self.foreign, self._scopes)
        self._count = 0
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for module, name in self._named().items():
                stack.callback(module.register_forward_pre_hook(self._entering(name), prepend=True).remove)
                leave = module.register_forward_hook(self._leave, always_call=True)
                stack.callback(leave.remove)
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack))
            stack.enter_context(self._calls)
            stack.enter_context(self.births)
            if gc.isenabled():  # so that garbage of this forward stays among the youngest, which are soon gone through
                gc.disable()
                stack.callback(gc.enable)
            self._exit = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self._exit.close()
        # The graph holds the recorder, and the model may hold the graph: a circle through torch, which nothing breaks.
        self.model, self.names = None, {}
        if self._error is not None and kind is None:
            raise self._error

    def saved(self, output: Any = None) -> Saved:
        """What is kept now. Tensors in `output` are not, unless something else keeps them too.

        Without `output` what hooks do not see goes uncounted: it cannot be told from results that are still in use.
        """
        gc.collect(1)
        held = sorted(self._held, key=lambda one: one.order)
        born, copies = self.births.born, self.births.copies
        living = self.births.sizes()
        alive = set(living)
        savers: dict[int, list[_Held]] = {}
        sizes: dict[int, int] = {}
        for one in held:
            for storage in storages(one.tensor):
                savers.setdefault(storage._cdata, []).append(one)
                sizes[storage._cdata] = storage.nbytes()
        own = self._parameters | {key for key, them in savers.items() if any(one.parameter for one in them)}
        kept = [_kept(sizes[key], them) for key, them in savers.items() if key in alive - copies]
        given = addresses(output)
        unseen = alive - set(savers) - given - copies if output is not None else set()
        kept += [SavedTensor(living[key], (), "", (born[key][1],), seen=False) for key in unseen if living[key]]
        return Saved(
            tuple(sorted(kept, key=lambda one: -one.bytes)),
            inputs=sum(sizes[key] for key in savers if key not in born and key not in own),
            parameters=sum(sizes[key] for key in savers if key not in born and key in own),
            changed=tuple({one.saver: None for one in held if one.tensor._version != one.version}),
            copies=sum(living[key] for key in alive & copies - given),
        )

    def _named(self) -> dict[nn.Module, str]:
        """But scripted modules, which have no hooks of forward: what they keep is told of who calls them."""
        listed = () if self.model is None else self.model.named_modules()
        plain = {module: name for name, module in listed if not isinstance(module, torch.jit.ScriptModule)}
        return {**plain, **self.names}

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            self._scopes.append(name)

        return enter

    def _leave(self, *_: Any) -> None:
        self._scopes.pop()

    def _pack(self, tensor: Tensor) -> _Held | Tensor:
        try:
            self._count += 1
            by = self._saved_by(sys._getframe(1))
            held = _Held(tensor, Saver(self._scopes[-1], str(by), by.method), self._count)
            self._held.add(held)
            return held
        except BaseException as error:  # torch would end the process for it: it comes when forward is over
            self._error = self._error or error
            return tensor

    def _saved_by(self, frame: FrameType) -> SavedBy:
        """The autograd.Function that saves, if one does, or else torch's function; frame: what called the hook."""
        if frame.f_code is _APPLY:
            function = frame.f_locals["cls"]
            saved_by: Callable[..., SavedBy] | None = getattr(function, "saved_by", None)
            return saved_by(*frame.f_locals["args"]) if saved_by else SavedBy(function.__name__)
        return SavedBy(self._calls.running[-1] if self._calls.running else "")


def _kept(size: int, savers: Iterable[_Held]) -> SavedTensor:
    savers = list(savers)
    first = savers[0].tensor
    who = tuple(dict.fromkeys(one.saver for one in savers))
    return SavedTensor(size, tuple(first.shape), str(first.dtype).removeprefix("torch."), who)
