"""What each node of an FX graph does, found by running the graph once on fake tensors, which have no numbers.

So nothing is guessed from names: which results share memory, what is written in place, also through views, what
draws random numbers, what needs a gradient where it is read, and what autograd saves, storage by storage.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import HigherOrderOperator
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernels.memory.isolated import fake_mode, unchanged

_DEVICES = ("cpu", "cuda", "mps", "xpu")  # that have autocast
_ENTER, _EXIT = torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast
# How exports have what runs with gradients or autocast otherwise than the rest: as graphs in the graph.
_WITH_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled
_WITH_AUTOCAST = torch.ops.higher_order.wrap_with_autocast


@dataclass
class Fact:
    """What is known of one node.

    Attributes
    ----------
    value
        Its result, if that is one tensor.
    storages
        Of all tensors in its result.
    varying
        The nodes it reads that need a gradient as it reads them.
    needs
        Whether its result needs one.
    writes
        Storages changed in place.
    keeps
        Storages that autograd saves for it, with their bytes.
    random
        Whether it draws random numbers.
    opaque
        Whether it holds a graph of its own, which was not run.
    era
        The same for two nodes if nothing between them turns gradients or autocast on or off.
    """

    value: FakeTensor | None = None
    storages: frozenset[int] = frozenset()
    varying: tuple[fx.Node, ...] = ()
    needs: bool = False
    writes: frozenset[int] = frozenset()
    keeps: dict[int, int] = field(default_factory=dict)
    random: bool = False
    opaque: bool = False
    era: int = 0


@dataclass
class Facts:
    """What is known of the nodes of a graph.

    Attributes
    ----------
    of
        By node.
    outside
        Storages that are there whether or not anything is saved: parameters, buffers and inputs.
    """

    of: dict[fx.Node, Fact]
    outside: set[int]
    # A storage is known by its address, which must not be given out again.
    _alive: Any = field(default=None, repr=False)


def observe(module: fx.GraphModule, inputs: Sequence[Any]) -> Facts:
    """Run `module` on fakes of `inputs`, one for each placeholder. Neither it nor any random state is changed.

    Raises
    ------
    Exception
        Whatever a model raises that cannot run so, as one that branches on numbers.
    """
    mode = fake_mode(inputs)

    def fake(value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, FakeTensor):
            return value
        return mode.from_tensor(value, static_shapes=True)

    with unchanged(module), ExitStack() as stack:
        for one in module.modules():
            for members in (one._parameters, one._buffers):
                members.update({name: fake(tensor) for name, tensor in members.items()})
        outside = _storages([*module.parameters(), *module.buffers()])
        stack.callback(torch.clear_autocast_cache)  # it may hold fakes
        stack.enter_context(torch.enable_grad())
        stack.enter_context(mode)
        watcher = _Watcher(module, fake, outside)
        stack.callback(watcher.leave)
        watcher.run(*(fake(value) for value in inputs), enable_io_processing=False)
    return Facts(watcher.facts, outside, (watcher.env, watcher.held))


class _Watcher(fx.Interpreter):
    """Runs a graph and notes a Fact for each node."""

    def __init__(self, module: fx.GraphModule, fake: Callable[[Any], Any], outside: set[int]) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.fake, self.outside = fake, outside
        self.facts: dict[fx.Node, Fact] = {}
        self.known = set(outside)
        self.held: list[Tensor] = []
        self.entered: list[Any] = []
        self.era = 0

    def leave(self) -> None:
        """Leave the autocasts that a graph which failed had entered."""
        while self.entered:
            _EXIT(self.entered.pop())

    def run_node(self, n: fx.Node) -> Any:
        reads = {node: self.env[node] for node in n.all_input_nodes}
        before = state()
        varying = tuple(node for node, value in reads.items() if _needs(value))
        fact = Fact(varying=varying, era=self.era)
        opaque = isinstance(n.target, HigherOrderOperator) and n.target not in (_WITH_GRAD, _WITH_AUTOCAST)
        value = self._opaque(n, fact, reads) if opaque else self._watched(n, fact)
        self.era += before != state()
        fact.storages = frozenset(_storages([value]))
        fact.needs = _needs(value)
        if type(value) is FakeTensor and value.layout == torch.strided:
            fact.value = value
        if n.op in ("placeholder", "get_attr"):
            self.outside |= _storages([one for one in tree_leaves(value) if isinstance(one, Tensor) and one.is_leaf])
        self.known |= fact.storages
        self.facts[n] = fact
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is _WITH_GRAD:
            enabled, graph, *operands = args
            with torch.set_grad_enabled(enabled):
                return graph(*operands)
        if target is _WITH_AUTOCAST:
            device, dtype, enabled, cached, graph, *operands = args
            with torch.autocast(device, dtype, enabled, cached):
                return graph(*operands)
        return super().call_function(target, args, kwargs)

    def _watched(self, n: fx.Node, fact: Fact) -> Any:
        with _saving(fact.keeps, self.held), _Operations() as seen:
            value = self.fake(super().run_node(n))
        if n.target is _ENTER:
            self.entered.append(value)
        elif n.target is _EXIT:
            self.entered = [one for one in self.entered if one is not self.env[n.args[0]]]
        fact.random = seen.random
        fact.writes = frozenset(seen.writes & self.known)  # others were made and written within this node
        return value

    def _opaque(self, n: fx.Node, fact: Fact, reads: dict[fx.Node, Any]) -> Any:
        """What holds graphs of its own is not run: it may do anything to what it reads."""
        value = n.meta["example_value"] if "example_value" in n.meta else n.meta["val"]
        fact.opaque = fact.random = True
        fact.writes = frozenset(_storages(reads.values()))
        for storage in fact.writes | _storages([value]):
            fact.keeps[storage] = 0
        if isinstance(value, Tensor | tuple | list) and not _needs(value) and fact.varying:
            value = torch.utils._pytree.tree_map_only(Tensor, _needing, value)
        return value


def _needing(value: Tensor) -> Tensor:
    """As if it depended on parameters: an export does not say."""
    return value.detach().requires_grad_() if value.is_floating_point() or value.is_complex() else value


class _Operations(TorchDispatchMode):
    """Which storages are written, and whether random numbers are drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: set[int] = set()
        self.random = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for index, one in enumerate(func._schema.arguments):
            if one.alias_info is not None and one.alias_info.is_write:
                self.writes |= _storages([args[index] if index < len(args) else kwargs.get(one.name)])
        if "batch_norm" in func.__name__ or "instance_norm" in func.__name__:  # whose schema is silent on statistics
            self.writes |= _storages(args[1:])
        self.random |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **kwargs)


@contextmanager
def _saving(keeps: dict[int, int], held: list[Tensor]) -> Iterator[None]:
    """Notes the storages that autograd saves, and holds them."""

    def pack(tensor: Tensor) -> Tensor:
        inner = tensor.detach()
        held.append(inner)
        for storage in _storages([inner]):
            keeps[storage] = hint(inner.untyped_storage().nbytes())
        return inner

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield


def hint(number: Any) -> int:
    """A number, or what a symbolic one was when the graph was made."""
    return int(number) if isinstance(number, int) else int(number.node.hint or 0)


def _needs(value: Any) -> bool:
    return any(isinstance(one, Tensor) and one.requires_grad for one in tree_leaves(value))


def _storages(values: Iterable[Any]) -> set[int]:
    leaves = tree_leaves(list(values))
    return {one.untyped_storage()._cdata for one in leaves if isinstance(one, Tensor) and one.layout == torch.strided}


def state() -> tuple[Any, ...]:
    """What gradients and autocast are set to."""
    autocast = ((torch.is_autocast_enabled(one), torch.get_autocast_dtype(one)) for one in _DEVICES)
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *autocast
