"""The basis of plans for `compress`: what captured graphs save in a step, and the errors of codes there."""

from collections.abc import Callable, Iterator, Set
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, fx, nn

from kernels import private as torch_private
from kernels.compression.cut import Cut
from kernels.compression.forms import MAX_BITS, Whole, bytes_of
from kernels.compression.planning import seen_as
from kernels.compression.splice import let_cross
from kernels.graph.capture import Engine
from kernels.graph.codes import encode
from kernels.graph.execute import Run
from kernels.graph.install import install, removed
from kernels.graph.partition import Partitioner
from kernels.graph.units import units
from kernels.memory.compiled import saved_of
from kernels.memory.step import run_step
from kernels.memory.storages import addresses, storages
from kernels.methods.every_tensor import EveryTensor
from kernels.methods.planned import Planned
from kernels.planning.sensitivity import Gradients, Trials
from kernels.planning.step import History, Step
from kernels.planning.task import Blocks, Task

OBSERVED = 4  # bits of codes in a step that is observed


class CapturedGradients(Gradients):
    """As `Gradients`, of a model whose modules are captured: their backward graphs see what is decoded."""

    def _output(self, model: nn.Module, args: Any, kwargs: Any) -> Any:
        engine = _Apart(EveryTensor(MAX_BITS, self._trials.rounding))
        engine.cuts = lambda name: _Trying(engine, name, self._trials)
        captured = install(model, engine)
        try:
            with torch.compiler.set_stance("default"):
                return model(*args, **kwargs)
        finally:
            removed(captured)


class CapturedTask(Task):
    """As `Task`, of a model that `compress` will change."""

    gradients: ClassVar[type[Gradients]] = CapturedGradients

    @property
    def blocks(self) -> Blocks:
        """The captured modules that backward could run again."""
        names = {name for name, _ in units(self.model, leaves=True)}
        return [name for name in super().blocks if name in names]

    def _observed(self, blocks: Blocks, whole: Set[str] = frozenset()) -> Step:
        history, ends = History(), list[tuple[int, int]]()
        engine = _OnFakes(Planned(OBSERVED, self.rounding, dict.fromkeys(whole, None)), frozenset(blocks))
        engine.cuts = lambda name: _Observing(engine, name, history)

        def end_forward(results: list[Tensor]) -> None:
            held = addresses([x for result in results if result.grad_fn for x in saved_of(result.grad_fn)])
            others = [x for x in results if not any(storage._cdata in held for storage in storages(x))]
            ends.append((history.event(), history.now_without(others)))

        run_step(
            history,
            self.model,
            *self.call,
            **self._step_options,
            prepare=lambda copied: install(copied, engine),
            between=end_forward,
        )
        history.event()  # ends the last segment
        return Step(history.sites(), OBSERVED, tuple(history.peaks), *ends[0], history.operations, history.whole)


class _Apart(Engine):
    """Captures each module apart, with a partitioner that knows its name."""

    cuts: Callable[[str], Partitioner]

    def partitioner(self, name: str) -> Partitioner:
        return self.cuts(name)

    def variant(self, name: str) -> str:
        return name


class _OnFakes(_Apart):
    """Runs graphs within the dispatch modes that a call is in, of which Dynamo's guards must know nothing."""

    def calling(self) -> AbstractContextManager[Any]:
        return self._without_modes()

    @contextmanager
    def _without_modes(self) -> Iterator[None]:
        with super().calling(), torch_private.without_dispatch_modes() as self._modes:
            yield

    def within(self, run: Run) -> Run:  # type: ignore[override]
        def within(given: list[Any]) -> Any:
            active = {id(mode) for mode in torch_private.mode_stack()}  # in backward, which is called within them
            modes = [mode for mode in self._modes if id(mode) not in active]
            for mode in reversed(modes):
                torch_private.push_mode(mode)
            try:
                return run(given)
            finally:
                for _ in modes:
                    torch_private.pop_mode()

        within._boxed_call = True  # type: ignore[attr-defined]
        return within


class _Named(Partitioner):
    """A partitioner that knows the name of the module that it cuts the graphs of."""

    def __init__(self, engine: Engine, name: str) -> None:
        super().__init__(engine.graphs, engine.method and engine.method.under(name))
        self._name = name

    def _site(self, site: str) -> str:
        """A site's name in the whole model."""
        return f"{self._name}{site}" if site.startswith(":") or not self._name else f"{self._name}.{site}"


class _Observing(_Named):
    """Tells a history of the codes that forward makes; tensors are fake."""

    def __init__(self, engine: Engine, name: str, history: History) -> None:
        super().__init__(engine, name)
        self._history = history

    def _write(self, forward: fx.GraphModule, backward: fx.GraphModule, cut: Cut, rounding: str) -> None:
        super()._write(forward, backward, cut, rounding)
        for node, site in cut.sites.items():
            if isinstance(cut.forms[node], Whole):
                self._history.whole[self._site(site)] = bytes_of(node.meta["val"])
        for made in forward.graph.find_nodes(op="call_function", target=encode):
            made.target = self._noting(self._site(cut.sites[made.args[0]]))
        forward.recompile()

    def _noting(self, site: str) -> Callable[..., Any]:
        def noting(x: Tensor, order: Any, group: int, bits: int, *others: Any) -> tuple[Tensor, ...]:
            made = encode(x, order, group, bits, *others)
            self._history.saved(site, x.numel() * x.itemsize, bits, made[:3], made[0].untyped_storage())
            return made

        return noting


class _Trying(_Named):
    """Lets tensors cross whole, and backward see their values as decoded from the codes on trial."""

    def __init__(self, engine: Engine, name: str, trials: Trials) -> None:
        super().__init__(engine, name)
        self.smallest, self._trials = trials.smallest, trials

    def _write(self, forward: fx.GraphModule, backward: fx.GraphModule, cut: Cut, rounding: str) -> None:
        for node, site in cut.sites.items():
            seen_as(backward.graph, self._trials, self._site(site), cut, node)
        let_cross(forward, backward, cut.outputs, list(cut.pairs))
