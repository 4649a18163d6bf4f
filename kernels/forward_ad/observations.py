"""What each node of an FX graph does, observed by running the graph once on fake tensors, which have no numbers.

Nothing is guessed from names. Observed are: which results share memory, what is written in place, also through views,
what draws random numbers, what needs a gradient where it is read, and what autograd saves, storage by storage.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from kernels import private
from kernels.memory.isolated import fake_mode, unchanged

_DEVICES = ("cpu", "cuda", "mps", "xpu")  # that have autocast
# Exports hold code that changes gradient mode or autocast as a graph within the graph, called by one of these.
_WITH_GRAD, _WITH_AUTOCAST = "wrap_with_set_grad_enabled", "wrap_with_autocast"


@dataclass
class Observation:
    """What one node did in the run.

    Attributes
    ----------
    value
        Its result, if that is one tensor.
    storages
        The storages of all tensors in its result.
    varying
        The nodes it reads whose results require a gradient at that point.
    requires_grad
        Whether its result requires a gradient.
    writes
        Storages changed in place.
    saved
        Storages that autograd saves for it, with their bytes.
    random
        Whether it draws random numbers.
    opaque
        Whether it holds a graph of its own, which was not run.
    era
        The same for two nodes if nothing between them turns gradients or autocast on or off.
    """

    value: Tensor | None = None
    storages: frozenset[int] = frozenset()
    varying: tuple[fx.Node, ...] = ()
    requires_grad: bool = False
    writes: frozenset[int] = frozenset()
    saved: dict[int, int] = field(default_factory=dict)
    random: bool = False
    opaque: bool = False
    era: int = 0


@dataclass
class Observations:
    """What the nodes of a graph did in the run.

    Attributes
    ----------
    of
        The observation of each node.
    outside
        Storages that exist whether or not anything is saved: parameters, buffers and inputs.
    """

    of: dict[fx.Node, Observation]
    outside: set[int]
    # A storage is identified by its address: this keeps the storages alive, so that no address is used twice.
    _alive: Any = field(default=None, repr=False)


def observe(module: fx.GraphModule, inputs: Sequence[Any]) -> Observations:
    """Run `module` on fakes of `inputs`, one for each placeholder. The module and all random states stay unchanged.

    Raises
    ------
    Exception
        Whatever a model raises that cannot run on fake tensors, such as one that branches on numbers.
    """
    mode = fake_mode(inputs)

    def fake(value: Any) -> Any:
        if not isinstance(value, Tensor) or private.is_fake(value):
            return value
        return mode.from_tensor(value, static_shapes=True)

    with unchanged(module), ExitStack() as stack:
        for submodule in module.modules():
            for members in (submodule._parameters, submodule._buffers):
                members.update({name: fake(tensor) for name, tensor in members.items()})
        outside = _storages([*module.parameters(), *module.buffers()])
        stack.callback(torch.clear_autocast_cache)  # it may hold fakes
        stack.enter_context(torch.enable_grad())
        stack.enter_context(mode)
        watcher = _Watcher(module, fake, outside)
        stack.callback(watcher.leave)
        watcher.run(*(fake(value) for value in inputs), enable_io_processing=False)
    return Observations(watcher.observations, outside, (watcher.env, watcher.held))


class _Watcher(fx.Interpreter):
    """Runs a graph and records an Observation of each node."""

    def __init__(self, module: fx.GraphModule, fake: Callable[[Any], Any], outside: set[int]) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.fake, self.outside = fake, outside
        self.observations: dict[fx.Node, Observation] = {}
        self.known = set(outside)
        self.held: list[Tensor] = []
        self.entered: list[Any] = []
        self.era = 0

    def leave(self) -> None:
        """Leave the autocasts that a failed graph had entered."""
        while self.entered:
            private.exit_autocast(self.entered.pop())

    def run_node(self, n: fx.Node) -> Any:
        reads = {node: self.env[node] for node in n.all_input_nodes}
        before = state()
        varying = tuple(node for node, value in reads.items() if _requires_grad(value))
        observation = Observation(varying=varying, era=self.era)
        opaque = _graph_caller(n.target) not in ("", _WITH_GRAD, _WITH_AUTOCAST)
        value = self._opaque(n, observation, reads) if opaque else self._watched(n, observation)
        self.era += before != state()
        observation.storages = frozenset(_storages([value]))
        observation.requires_grad = _requires_grad(value)
        if type(value) is private.FakeTensor and value.layout == torch.strided:
            observation.value = value
        if n.op in ("placeholder", "get_attr"):
            self.outside |= _storages(
                [tensor for tensor in private.tree_leaves(value) if isinstance(tensor, Tensor) and tensor.is_leaf]
            )
        self.known |= observation.storages
        self.observations[n] = observation
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        caller = _graph_caller(target)
        if caller == _WITH_GRAD:
            enabled, graph, *operands = args
            with torch.set_grad_enabled(enabled):
                return graph(*operands)
        if caller == _WITH_AUTOCAST:
            device, dtype, enabled, cached, graph, *operands = args
            with torch.autocast(device, dtype, enabled, cached):
                return graph(*operands)
        return super().call_function(target, args, kwargs)

    def _watched(self, n: fx.Node, observation: Observation) -> Any:
        with _saving(observation.saved, self.held), _Operations() as seen:
            value = self.fake(super().run_node(n))
        if n.target is private.enter_autocast:
            self.entered.append(value)
        elif n.target is private.exit_autocast:
            self.entered = [context for context in self.entered if context is not self.env[n.args[0]]]
        observation.random = seen.random
        observation.writes = frozenset(seen.writes & self.known)  # others were made and written within this node
        return value

    def _opaque(self, n: fx.Node, observation: Observation, reads: dict[fx.Node, Any]) -> Any:
        """A node that holds graphs of its own is not run; it counts as writing all it reads."""
        value = n.meta["example_value"] if "example_value" in n.meta else n.meta["val"]
        observation.opaque = observation.random = True
        observation.writes = frozenset(_storages(reads.values()))
        for storage in observation.writes | _storages([value]):
            observation.saved[storage] = 0
        if isinstance(value, Tensor | tuple | list) and not _requires_grad(value) and observation.varying:
            value = private.tree_map(_as_requiring_grad, value)
        return value


def _graph_caller(target: Any) -> str:
    """The name of an operator that takes graphs; "" for anything else."""
    return str(target.name()) if isinstance(target, private.HigherOrderOperator) else ""


def _as_requiring_grad(value: Any) -> Any:
    """The tensor as if it depended on parameters: an export does not say whether it does. Other values as they are."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().requires_grad_() if value.is_floating_point() or value.is_complex() else value


class _Operations(private.DispatchMode):
    """Records which storages are written, and whether random numbers are drawn."""

    def __init__(self) -> None:
        self.writes: set[int] = set()
        self.random = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for index, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.writes |= _storages([args[index] if index < len(args) else kwargs.get(argument.name)])
        if "batch_norm" in func.__name__ or "instance_norm" in func.__name__:  # the schema omits the statistics
            self.writes |= _storages(args[1:])
        self.random |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **kwargs)


@contextmanager
def _saving(saved: dict[int, int], held: list[Tensor]) -> Iterator[None]:
    """Record the storages that autograd saves, and hold them."""

    def pack(tensor: Tensor) -> Tensor:
        inner = tensor.detach()
        held.append(inner)
        for storage in _storages([inner]):
            saved[storage] = hint(inner.untyped_storage().nbytes())
        return inner

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield


def hint(number: Any) -> int:
    """A number, or the value that a symbolic number had when the graph was made."""
    return int(number) if isinstance(number, int) else int(number.node.hint or 0)


def _requires_grad(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in private.tree_leaves(value))


def _storages(values: Iterable[Any]) -> set[int]:
    leaves = private.tree_leaves(list(values))
    return {
        leaf.untyped_storage()._cdata for leaf in leaves if isinstance(leaf, Tensor) and leaf.layout == torch.strided
    }


def state() -> tuple[Any, ...]:
    """The settings of gradient mode and autocast."""
    autocast = ((torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES)
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *autocast
