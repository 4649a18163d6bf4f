"""What all captured modules of a model share: the policy, and the graphs, which modules that are alike share."""

import itertools
import warnings
import weakref
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, ClassVar, Self

from torch import fx, nn

from actfit.kernels.compression.crossing import Graph
from actfit.kernels.errors import warn
from actfit.kernels.graph import private
from actfit.kernels.graph.execute import Run, execute
from actfit.kernels.graph.frames import captured, seen_by_guards
from actfit.kernels.graph.fusion import fused
from actfit.kernels.graph.inductor import InductorPartitioner
from actfit.kernels.graph.partition import Partitioner
from actfit.kernels.graph.results import no_results, sharing
from actfit.kernels.graph.watch import Watch
from actfit.kernels.graph.ways.policies import way_of
from actfit.kernels.methods.every_tensor import EveryTensor
from actfit.kernels.modes import (
    are_left_for_capture,
    fakes_are_made,
    within_function_modes,
    without_function_modes,
)
from actfit.kernels.private import in_dispatch_mode, release

NUMBERS = itertools.count()  # of captured calls
UNGUARDED = release() < (2, 11)  # Dynamo does not look whether weights are frozen


class Unit:
    """A module that is captured.

    Attributes
    ----------
    name
        Its name in the model.
    own
        A `forward` that the instance had already; None: that of its class.
    key, kind
        Of the engine's entry at the last call; and of the engine's kinds, from the first call on.
    """

    def __init__(self, name: str, own: Callable[..., Any] | None) -> None:
        self.name, self.own = name, own
        self.key: Any = None
        self.kind: int | None = None


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
    compiles
        Whether Inductor compiles the graphs; else PyTorch's own kernels run them.
    chunked_loss
        Whether the cross-entropy of logits of many classes is computed some rows at a time.
    planned
        By site, the errors of decoded tensors that a plan goes by, and that are watched.
    shares
        Whether results that another block saves are recomputed, where they can be, from what the first one saves.
    stock
        Modules that run as stock, and the reason; their parts are captured.
    graphs
        What each captured graph saves, in the order of capture.
    """

    method: EveryTensor | None = None
    recomputed: frozenset[str] = frozenset()
    policy: str | None = None
    planned: dict[str, float] = field(default_factory=dict)
    chunked_loss: bool = False
    compiles: bool = False
    shares: bool = False
    stock: dict[str, str] = field(default_factory=dict)
    graphs: list[Graph] = field(default_factory=list)

    interprets: ClassVar[bool] = False  # whether Inductor's graphs run operation by operation, in its place
    warns: ClassVar[bool] = True  # of what is not captured; where a model is only measured, training will tell

    def __post_init__(self) -> None:
        # Dynamo asks for it at each input that is no leaf, and hides the warning, but not where warnings are errors.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning, "torch")
        self.kinds: dict[Hashable, int] = {}  # of modules of a class that may share graphs
        self.entries: dict[Any, Callable[..., Any]] = {}
        self.results = no_results()
        self.runs = 0  # of forward graphs
        self.functions: list[Any] = []  # modes in which its graphs are traced
        self.watch = Watch(self.planned)
        self.warned: set[str] = set()
        self.skipped: dict[str, str] = {}  # modules whose last call ran no graph, and the reason
        self.refused: dict[str, str] = {}  # with a policy: activations that stay exact, and the reason

    @property
    def running(self) -> str:
        """The name of the captured module that runs in this thread."""
        return self.unit.name

    @property
    def unit(self) -> Unit:
        """The captured module that runs in this thread."""
        unit: Unit = self.watch.running.unit
        return unit

    def call(self, call: Unit, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """The result of a module's forward, by its graphs, which are captured first if need be."""
        around, self.watch.running.unit = getattr(self.watch.running, "unit", None), call
        forward = call.own or type(module).forward
        try:
            if not in_dispatch_mode() or not are_left_for_capture(self.compiles):
                return self.entry(call, module, None)(forward, module, args, kwargs)
            fakes, count = seen_by_guards((args, kwargs)) if fakes_are_made() else None, len(self.graphs)
            try:
                with without_function_modes() as self.functions:
                    return self.entry(call, module, fakes)(forward, module, args, kwargs)
            finally:
                if fakes is None:  # Dynamo captures anew in each mode
                    del self.graphs[count:]
        finally:
            self.functions, self.watch.running.unit = [], around

    def entry(self, call: Unit, module: nn.Module, fakes: Hashable) -> Callable[..., Any]:
        """The captured call of modules of one class and size, with a code object of its own, and so an own cache.

        Of another size: else Dynamo would take sizes that differ between blocks for sizes that change. Fake tensors
        never pass Dynamo's guards; `fakes` says what these would check of them.
        """
        if call.kind is None:
            sizes = tuple((tuple(p.shape), p.dtype) for p in module.parameters())
            alike = (None if call.own is None else call, sizes, self.variant(call.name))
            call.kind = self.kinds.setdefault(alike, len(self.kinds))
        # What is frozen, too, where no guard says so: torch 2.9 runs graphs on without gradients of thawed weights.
        trained = tuple(p.requires_grad for p in module.parameters()) if UNGUARDED or fakes is not None else ()
        call.key = (type(module), call.kind, trained, fakes)  # FSDP2 changes a module's class
        if call.key not in self.entries:
            function = _of_class if call.own is None else _of_instance
            # By the name Dynamo remembers, for ever, which sizes have changed: no two may have the same.
            code = function.__code__.replace(co_name=f"block_{next(NUMBERS)}")
            own = FunctionType(code, function.__globals__, code.co_name)
            alive = weakref.ref(self)  # Dynamo keeps backends for ever
            instead = _fused if fakes is not None else execute if self.interprets else None

            def tracing() -> AbstractContextManager[None]:
                return within_function_modes(_alive(alive).functions)

            partitioner = self.partitioner(call.name, instead is None)

            def forward_run(module: fx.GraphModule, run: Run) -> Run:
                return _alive(alive).forward_run(module, run)

            if self.compiles:
                backend = private.by_inductor(partitioner, instead, forward_run, self.of_backward(), tracing)
            else:
                backend = private.by_kernels(partitioner, forward_run, self.of_backward(), tracing)
            self.entries[call.key] = captured(own, backend, lambda: _alive(alive).unit)
        return self.entries[call.key]

    def partitioner(self, name: str, generates: bool) -> Partitioner:
        """What cuts the graphs of a module; `generates`: for which Inductor generates code, if it compiles them."""
        way = None if self.policy is None else way_of(self.policy)
        watch, shares = self.watch if self.planned else None, self.shares and not self.compiles
        kind = InductorPartitioner if self.compiles and generates else Partitioner
        again = self.recomputes(name)
        given = self.graphs, self.method_of(name), way, self.refused, watch, self.compiles, again, shares
        return kind(*given, block=name)

    def method_of(self, name: str) -> EveryTensor | None:
        """The method for the saved tensors in a module; None: exact."""
        return None if self.method is None else self.method.under(name)

    def variant(self, name: str) -> Hashable:
        """What modules that are alike must have in common to share their graphs."""
        return self.recomputes(name), self.method_of(name)

    def recomputes(self, name: str) -> bool:
        """Whether backward runs a module again, or parts of it where it is captured in parts."""
        return any(name == block or name.startswith(f"{block}.") for block in self.recomputed)

    def warn_once(self, about: str, text: str) -> None:
        if self.warns and about not in self.warned:
            self.warned.add(about)
            warn(text)

    def forward_run(self, module: fx.GraphModule, run: Run) -> Run:
        """What runs a forward graph, and counts that."""
        run, own = sharing(module, run, self.results), weakref.ref(self)

        def counted(given: list[Any]) -> Any:
            engine = _alive(own)
            engine.runs += 1
            engine.watch.beside(module, given)
            return run(given)

        counted._boxed_call = True  # type: ignore[attr-defined]
        return counted

    def of_backward(self) -> Callable[[fx.GraphModule, Run], Run]:
        """What makes, of a backward graph and what runs it, what does in its place; it does not hold the engine."""
        return lambda module, run: run

    @property
    def _given(self) -> tuple[Any, ...]:
        given = self.method, self.recomputed, self.policy, self.planned, self.chunked_loss, self.compiles, self.shares
        return *given, dict(self.stock)

    def __reduce__(self) -> Any:
        return Engine, self._given  # it captures anew

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = type(self)(*self._given)
        # What a copy tells, as one on fake tensors, holds for all.
        made.refused, made.warned = self.refused, self.warned
        memo[id(self)] = made
        return made


def _fused(graph: fx.GraphModule) -> Run:
    return execute(fused(graph))


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
