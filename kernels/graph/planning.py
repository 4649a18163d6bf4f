"""The basis of plans for `compress`: what captured graphs save in a step, and the errors of codes there."""

import weakref
from collections.abc import Callable, Hashable, Iterator, Set
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor, fx

from actfit.kernels.compression.cut import Cut
from actfit.kernels.compression.forms import MAX_BITS, Whole, bytes_of
from actfit.kernels.graph.codes import decode, encode
from actfit.kernels.graph.engine import Engine
from actfit.kernels.graph.execute import Run
from actfit.kernels.graph.install import install, removed
from actfit.kernels.graph.partition import Partitioner
from actfit.kernels.graph.splice import replace_codes
from actfit.kernels.graph.trials import CapturedGradients, Named
from actfit.kernels.graph.units import units
from actfit.kernels.head.logits import waits
from actfit.kernels.memory.compiled import saved_of
from actfit.kernels.memory.step import run_step
from actfit.kernels.memory.storages import addresses, storages
from actfit.kernels.methods.every_tensor import EveryTensor
from actfit.kernels.methods.planned import Planned, in_model
from actfit.kernels.planning.blocks import Blocks, BlockWays
from actfit.kernels.planning.sensitivity import Gradients
from actfit.kernels.planning.step import History, Step
from actfit.kernels.planning.task import Task

OBSERVED = 4  # bits of codes in a step that is observed


class CapturedTask(Task):
    """As `Task`, of a model that `compress` will change."""

    gradients: ClassVar[type[Gradients]] = CapturedGradients

    @property
    def blocks(self) -> Blocks:
        """The captured modules that backward could run again."""
        names = {name for name, _ in units(self.model, leaves=True, heads=True)}
        return [name for name in super().blocks if name in names]

    @cached_property
    def _observing(self) -> dict[Hashable, "_Observed"]:
        """What captured the model for steps that were observed; others run its graphs, too."""
        return {}

    def changed(self, ways: BlockWays) -> Callable[[], AbstractContextManager[object]]:
        method = None if ways.exact else EveryTensor(MAX_BITS, self.rounding)
        # It captures once, for all calls.
        engine = _Timed(method, frozenset(ways.recomputed), chunked_loss=True, compiles=self.compiles)

        @contextmanager
        def changed() -> Iterator[None]:
            captured = install(self.model, engine, ways.unchanged)
            try:
                yield
            finally:
                removed(captured)

        return changed

    def _observed(self, ways: BlockWays, whole: Set[str] = frozenset()) -> Step:
        history, ends = History(), list[tuple[int, int]]()
        method = None if ways.exact else Planned(OBSERVED, self.rounding, dict.fromkeys(whole, None))
        engine = self._observing.setdefault(
            (ways.exact, frozenset(whole)), _Observed(method, chunked_loss=True, compiles=self.compiles)
        )
        engine.history, engine.recomputed = history, frozenset(ways.recomputed)

        def end_forward(results: list[Tensor]) -> None:
            held = addresses([x for result in results for x in _held(result)])
            there = [x for x in results if not waits(x)]
            others = [x for x in there if not any(storage._cdata in held for storage in storages(x))]
            ends.append((history.event(), history.now_without(others)))

        run_step(
            history,
            self.model,
            *self.call,
            **self._step_options,
            prepare=lambda copied: install(copied, engine, ways.unchanged),
            between=end_forward,
        )
        history.event()  # ends the last segment
        if ways.exact:
            history.whole.clear()  # no tensor could have codes
        peaks = self.held.over(history.peaks)
        return Step(history.sites(), OBSERVED, peaks, *ends[0], history.operations, history.whole)


def _held(result: Tensor) -> Iterator[Tensor]:
    """The tensors that a result holds for backward; to ask logits that wait for their node would make them."""
    if waits(result):
        yield from result.linear.given
    elif result.grad_fn:
        yield from saved_of(result.grad_fn)


WHOLE = "saved whole"  # a key of what goes with a graph


class _Timed(Engine):
    """The engine of training, for steps that are timed."""

    warns = False


class _Observed(Engine):
    """Tells a history of the codes that forward makes, and of what it saves whole; tensors are fake."""

    history: History
    interprets, warns = True, False

    def partitioner(self, name: str, generates: bool) -> Partitioner:
        return _Observing(self, name)

    def forward_run(self, module: fx.GraphModule, made: Run) -> Run:
        run, engine = super().forward_run(module, made), weakref.proxy(self)

        def noting(given: list[Any]) -> Any:
            whole = module.meta.get(WHOLE, {}).items()  # without gradients nothing is cut
            engine.history.whole.update({in_model(engine.running, site): size for site, size in whole})
            return run(given)

        noting._boxed_call = True  # type: ignore[attr-defined]
        return noting


class _Observing(Named):
    """Cuts as in training; forward tells of its codes."""

    def _write(self, forward: fx.GraphModule, backward: fx.GraphModule, cut: Cut, rounding: str) -> None:
        super()._write(forward, backward, cut, rounding)
        whole = [node for node in cut.sites if self.method is not None and isinstance(cut.forms[node], Whole)]
        forward.meta[WHOLE] = {cut.sites[node]: bytes_of(node.meta["val"]) for node in whole}
        replace_codes(forward, backward, cut, self._noting, self._decoding)

    def _decoding(self, planes: Tensor, *others: Any) -> Tensor:
        return self._engine.history.decoded(planes, decode(planes, *others))

    def _noting(self, site: str) -> Callable[..., Any]:
        def noting(x: Tensor, order: Any, group: int, bits: int, *others: Any) -> list[Tensor]:
            made = encode(x, order, group, bits, *others)
            name = self._whole_name(site)
            self._engine.history.saved(name, x, bits, made[:3], made[0].untyped_storage())
            return made

        return noting
