"""The call of a module, whose graphs are captured at the first call with gradients, and run from then on."""

import copy
import inspect
import warnings
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, Self

import torch
from torch import nn

from kernels.compression.crossing import Graph
from kernels.errors import KernelError
from kernels.graph import private
from kernels.graph.again import Inputs, run_again
from kernels.graph.execute import Run, execute, execute_backward
from kernels.graph.partition import Partitioner
from kernels.graph.watch import Watch
from kernels.graph.ways.policies import way_of
from kernels.methods.every_tensor import EveryTensor
from kernels.private import (
    exporting,
    fakes_are_made,
    in_dispatch_mode,
    in_transform,
    within,
    within_function_modes,
    without_dispatch_modes,
    without_function_modes,
)


@dataclass(eq=False)
class Engine:
    """What all captured modules of a model share: the policy, and the graphs by class.

    Attributes
    ----------
    method
        Bits and rounding of saved tensors, or a plan's; None: exact.
    recomputed
        Names of modules of which backward runs all again.
    policy
        The name of a way; None: activations are exact.
    planned
        By site, the errors of decoded tensors that a plan goes by, and that are watched.
    stock
        Modules that run as stock, and the reason.
    graphs
        What each captured graph saves, in the order of capture.
    """

    method: EveryTensor | None = None
    recomputed: frozenset[str] = frozenset()
    policy: str | None = None
    planned: dict[str, float] = field(default_factory=dict)
    stock: dict[str, str] = field(default_factory=dict)
    graphs: list[Graph] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Dynamo asks for it at each input that is no leaf, and hides the warning, but not where warnings are errors.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning, "torch")
        self.kinds: dict[Hashable, int] = {}  # of modules of a class that may share graphs
        self.entries: dict[Any, Callable[..., Any]] = {}
        self.runs = 0  # of forward graphs
        self.running = ""  # the module that is called
        self.functions: list[Any] = []  # modes in which its graphs are traced
        self.modes: list[Any] = []  # in which its graphs run, that Dynamo must not see
        self.watch = Watch(self.planned)
        self.warned: set[str] = set()
        self.skipped: dict[str, str] = {}  # modules whose last call ran no graph, and the reason
        self.refused: dict[str, str] = {}  # with a policy: activations that stay exact, and the reason

    def entry(self, call: "Captured", module: nn.Module, fakes: Hashable) -> Callable[..., Any]:
        """The captured call of modules of one class and size, with a code object of its own, and so an own cache.

        Of another size: else Dynamo would take sizes that differ between blocks for sizes that change. Fake tensors
        never pass Dynamo's guards; `fakes` says what these would check of them.
        """
        if call.kind is None:
            sizes = tuple((tuple(p.shape), p.dtype) for p in module.parameters())
            alike = (None if call.own is None else call, sizes, self.variant(call.name))
            call.kind = self.kinds.setdefault(alike, len(self.kinds))
        # What is frozen, too: torch 2.9 runs a graph on without gradients where weights are thawed later.
        trained = tuple(p.requires_grad for p in module.parameters())
        call.key = (type(module), call.kind, trained, fakes)  # FSDP2 changes a module's class
        if call.key not in self.entries:
            function = _of_class if call.own is None else _of_instance
            code = function.__code__.replace(co_name=f"block_{id(self)}_{len(self.entries)}")  # Dynamo goes by the name
            own = FunctionType(code, function.__globals__, code.co_name)
            alive = weakref.ref(self)  # Dynamo keeps backends for ever
            backend = private.backend(
                self.partitioner(call.name),
                lambda *args: _alive(alive).forward_run(*args),
                execute_backward,
                lambda: within_function_modes(_alive(alive).functions),
            )
            self.entries[call.key] = private.captured(own, backend)
        return self.entries[call.key]

    def partitioner(self, name: str) -> Partitioner:
        """What cuts the graphs of a module."""
        method = None if self.method is None else self.method.under(name)
        way = None if self.policy is None else way_of(self.policy)
        return Partitioner(self.graphs, method, way, self.refused, self.watch if self.planned else None)

    def inputs(self, name: str) -> Inputs:
        """How a module that backward runs again keeps what it is given."""
        return Inputs(name, self.method)

    def variant(self, name: str) -> Hashable:
        """What modules that are alike must have in common to share their graphs."""
        return None if self.method is None else self.method.under(name)

    def warn_once(self, about: str, text: str) -> None:
        if about not in self.warned:
            self.warned.add(about)
            warnings.warn(text, stacklevel=4)

    def forward_run(self, module: Any, inputs: Any = ()) -> Run:
        """What runs a forward graph, and counts that."""
        run, own = execute(module, inputs), weakref.ref(self)

        def counted(given: list[Any]) -> Any:
            engine = _alive(own)
            engine.runs += 1
            if not engine.modes:
                return run(given)
            with within(engine.modes):
                return run(given)

        counted._boxed_call = True  # type: ignore[attr-defined]
        return counted

    def __reduce__(self) -> Any:
        return Engine, (self.method, self.recomputed, self.policy, self.planned)  # a copy captures anew

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = type(self)(self.method, self.recomputed, self.policy, self.planned)
        made.refused = self.refused  # what a copy tells, as one on fake tensors, holds for all
        memo[id(self)] = made
        return made


def _alive(engine: "weakref.ref[Engine]") -> Engine:
    """The engine, which the call that goes on holds."""
    held = engine()
    if held is None:
        raise ReferenceError("the engine of a captured graph must be alive while the graph runs")
    return held


def _of_class(forward: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
    return forward(module, *args, **kwargs)


def _of_instance(forward: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
    return forward(*args, **kwargs)


class ScriptError(KernelError, AttributeError):
    """Raised when torch.jit.script asks for code; an AttributeError, as others only look whether there is some."""


class Captured:
    """In place of a module's `forward`: runs the captured graphs, or stock where there is nothing to save.

    Measures know it by `runs_graphs`.

    Parameters
    ----------
    module, name
        The module, held weakly, as it holds this object; and its name in the model.
    engine
        Shared by all modules of the model.
    own
        A `forward` that the instance had already; None: that of its class.
    """

    runs_graphs = True

    def __init__(self, module: nn.Module, name: str, engine: Engine, own: Callable[..., Any] | None = None) -> None:
        self._module, self.name, self.engine, self.own = weakref.ref(module), name, engine, own
        self.key: Any = None  # of the engine's entry at the last call
        self.kind: int | None = None  # of the engine's kinds, from the first call on

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self._stock(*args, **kwargs) if exporting() else _inside_compile(self, args, kwargs)
        return self._stock(*args, **kwargs) if torch.jit.is_tracing() else self.run(args, kwargs)

    @property
    def __code__(self) -> CodeType:  # torch.export reads it
        code: CodeType = inspect.unwrap(type(self.module).forward).__code__
        return code

    @property
    def __globals__(self) -> Any:
        raise ScriptError(
            "model must be stock for torch.jit.script, which compiles the code of each forward, got one that"
            " compress(...) changed; call remove() of its handle, or use torch.compile or torch.export"
        )

    @property
    def __signature__(self) -> inspect.Signature:  # by which trainers choose what to give
        return inspect.signature(self.own or type(self.module).forward.__get__(self.module))

    @property
    def module(self) -> Any:
        """The module, which whoever calls it holds."""
        return self._module()

    def run(self, args: Any, kwargs: Any) -> Any:
        """Run the graphs, or stock."""
        engine = self.engine
        lacks_sizes = self.kind is None and any(map(nn.parameter.is_lazy, self.module.parameters()))
        if not torch.is_grad_enabled() or self.name in engine.stock or in_transform() or lacks_sizes:
            return self._stock(*args, **kwargs)
        if self.name in engine.recomputed:
            return run_again(self._stock, args, kwargs, engine.inputs(self.name))
        module, before = self.module, engine.runs
        engine.running = engine.watch.module.name = self.name
        forward = self.own or type(module).forward
        try:
            with private.settings():
                if not fakes_are_made():
                    result = engine.entry(self, module, None)(forward, module, args, kwargs)
                else:
                    with without_dispatch_modes() as engine.modes, without_function_modes() as engine.functions:
                        result = engine.entry(self, module, private.seen_by_guards((args, kwargs)))(
                            forward, module, args, kwargs
                        )
        except Exception as error:
            engine.modes = engine.functions = []
            if engine.runs == before:  # else it ran, and a checkpoint around it has computed again what it needs
                engine.entries.pop(self.key, None)  # Dynamo would skip it from now on
            if not private.failed_to_capture(error):
                raise
            return self._without_capture(error, args, kwargs)
        engine.modes = engine.functions = []
        engine.skipped.pop(self.name, None)
        if engine.runs == before:
            mode = in_dispatch_mode()
            reason = "within a TorchDispatchMode PyTorch runs no captured graphs" if mode else "no graph was captured"
            engine.skipped[self.name] = reason
            engine.warn_once(f"{self.name} {reason}", f"{self.name or 'the model'} ran as stock: {reason}")
        return result

    def _without_capture(self, error: Exception, args: Any, kwargs: Any) -> Any:
        """Run stock, from now on if it raises nothing: an error of forward itself is raised as stock raises it."""
        result = self._stock(*args, **kwargs)
        reason, name = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}", self.name or "the model"
        self.engine.stock[self.name] = reason
        self.engine.warn_once(self.name, f"{name} runs as stock, as it cannot be captured: {reason}")
        return result

    def _stock(self, *args: Any, **kwargs: Any) -> Any:
        if self.own is not None:
            return self.own(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Captured":
        return Captured(
            copy.deepcopy(self.module, memo),
            self.name,
            copy.deepcopy(self.engine, memo),
            copy.deepcopy(self.own, memo),
        )

    def __reduce__(self) -> Any:
        return Captured, (self.module, self.name, self.engine, self.own)


INSIDE = (
    "torch.compile runs a model that compress(...) changed: its blocks run by PyTorch's own kernels, outside of the "
    "compiled graphs; to compile them, too, leave compress out and write "
    "torch.compile(model, options=compression.options(bits=8))"
)


@torch.compiler.disable(reason=INSIDE)
def _inside_compile(call: Captured, args: Any, kwargs: Any) -> Any:
    """Run the blocks' own graphs beside those of a surrounding torch.compile, which would take them in unsaved."""
    if not torch.compiler.is_compiling():  # else another thread compiles, and this call is in no compiled code
        call.engine.warn_once("torch.compile", INSIDE)
    return call.run(args, kwargs)
