"""The errors of codes in captured graphs: backward sees saved tensors as codes on trial would give them."""

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from actfit.kernels.compression.cut import Cut
from actfit.kernels.compression.forms import MAX_BITS, Groups
from actfit.kernels.compression.nodes import is_tangent
from actfit.kernels.errors import KernelError
from actfit.kernels.graph.codes import decode, encode
from actfit.kernels.graph.engine import Engine
from actfit.kernels.graph.execute import Run
from actfit.kernels.graph.frames import seen_by_guards
from actfit.kernels.graph.install import install, removed
from actfit.kernels.graph.partition import Partitioner
from actfit.kernels.graph.splice import let_cross
from actfit.kernels.methods.every_tensor import EveryTensor
from actfit.kernels.methods.planned import in_model
from actfit.kernels.planning.decoded import relative_error
from actfit.kernels.planning.sensitivity import Bits, Gradients, Trials

MARK, TRIED = "mark", "tried"  # an input of backward; and a key of what goes with a graph


class CapturedGradients(Gradients):
    """As `Gradients`, of a model whose modules are captured: their backward graphs see what is decoded."""

    def _output(self, model: nn.Module, args: Any, kwargs: Any) -> Any:
        trials = self._trials
        method, key = EveryTensor(MAX_BITS, trials.rounding), (trials.smallest, seen_by_guards((args, kwargs)))
        made = _Tried(method, chunked_loss=True, compiles=trials.compiles)
        self._engine = engine = trials.engines.setdefault(key, made)
        engine.trials, engine.recomputed = weakref.proxy(trials), trials.recomputed
        captured = install(model, engine)
        try:
            with torch.compiler.set_stance("default"):
                return model(*args, **kwargs)
        finally:
            removed(captured)

    def _gradient(self, bits: Bits) -> list[Tensor | None]:
        self._engine.trials = weakref.proxy(self._trials)  # others may have run its graphs
        return super()._gradient(bits)


class Named(Partitioner):
    """A partitioner of graphs that modules share: each run is of the module that its engine says."""

    def __init__(self, engine: Engine, name: str) -> None:
        again = engine.recomputes(name)
        super().__init__(engine.graphs, engine.method_of(name), compiles=engine.compiles, again=again)
        self._engine = weakref.proxy(engine)  # Dynamo keeps partitioners for ever

    def _whole_name(self, site: str) -> str:
        """A site's name in the whole model, while its module is called."""
        return in_model(self._engine.running, site)


class _Tried(Engine):
    """Lets tensors cross whole, and backward see their values as decoded from the codes on trial."""

    trials: Trials  # a proxy: graphs, and so Dynamo, which keeps them for ever, hold none

    interprets, warns = True, False

    def partitioner(self, name: str, generates: bool) -> Partitioner:
        return _Trying(self, name)

    def of_backward(self) -> Callable[[fx.GraphModule, Run], Run]:
        return partial(_where_it_changes, weakref.proxy(self))

    def variant(self, name: str) -> bool:
        """Only that: all have the same graphs else, and codes on trial are looked up when they run."""
        return self.recomputes(name)


class _Trying(Named):
    """Lets tensors cross whole with a mark, which tells backward the module that was called."""

    _engine: _Tried

    def __init__(self, engine: _Tried, name: str) -> None:
        super().__init__(engine, name)
        self.smallest = engine.trials.smallest

    def _write(self, forward: fx.GraphModule, backward: fx.GraphModule, cut: Cut, rounding: str) -> None:
        crossing = list(cut.pairs)
        sites = {} if self.method is None else cut.sites
        if sites:
            sizes = {site: node.meta["val"].numel() for node, site in sites.items()}
            marks = self._mark(forward.graph, backward.graph, crossing[0], cut.pairs[crossing[0]], sizes)
            for node, site in sites.items():
                _put_seen(backward.graph, self._engine, site, cut, node, marks[1])
            crossing.insert(0, marks[0])
            backward.meta[TRIED] = list(sites.values())
        let_cross(forward, backward, cut.outputs, crossing)

    def _mark(
        self, forward: fx.Graph, backward: fx.Graph, first: fx.Node, placeholder: fx.Node, sizes: Mapping[str, int]
    ) -> tuple[fx.Node, fx.Node]:
        """The number of the module that is called, in forward and in backward; its sites are known to the trials."""

        def mark() -> Tensor:
            trials = self._engine.trials
            trials.sites.update({self._whole_name(site): count for site, count in sizes.items()})
            return torch.tensor(trials.number(self._engine.running))

        (last,) = forward.find_nodes(op="output")
        with forward.inserting_before(last):
            made = forward.call_function(mark)
        with backward.inserting_before(placeholder):
            given = backward.placeholder(MARK)
        made.meta["val"] = given.meta["val"] = first.meta["val"].new_empty((), dtype=torch.int64, device="cpu")
        return made, given


def _where_it_changes(engine: _Tried, module: fx.GraphModule, run: Run) -> Run:
    """Runs backward if tensors have codes on trial, or gradients of results are not the exact ones; else all is known.

    So the layers behind those on trial take no time. A call is known by its mark, which is kept, as is its address.
    """
    inputs, sites = module.graph.find_nodes(op="placeholder"), module.meta.get(TRIED, ())
    marks = [place for place, node in enumerate(inputs) if node.name == MARK]
    tangents = [place for place, node in enumerate(inputs) if is_tangent(node)]

    def run_or_known(given: list[Any]) -> Any:
        trials, mark, gradients = engine.trials, given[marks[0]], [given[place] for place in tangents]
        if any(trials.bits.get(trials.name(site, mark)) for site in sites):
            return run(given)
        known = trials.exact.get(mark.data_ptr())
        if known is not None and all(map(_same, gradients, known[1])):
            return list(known[2])
        results = run(given)
        if not trials.bits:
            trials.exact[mark.data_ptr()] = mark, gradients, tuple(results)
        return results

    run_or_known._boxed_call = True  # type: ignore[attr-defined]
    return run_or_known if marks else run


def _same(x: Tensor | None, y: Tensor | None) -> bool:
    """Whether two gradients are the same, bit for bit."""
    return x is y or (x is not None and y is not None and torch.equal(x, y))


def _put_seen(backward: fx.Graph, engine: _Tried, site: str, cut: Cut, node: fx.Node, mark: fx.Node) -> None:
    """Let backward see a tensor that crosses whole as codes on trial would give it; mark: the module's number."""
    form, placeholder = cut.forms[node], cut.pairs[node]
    if not isinstance(form, Groups):
        raise KernelError(f"every site must have codes to be tried, got {site} without; report this")
    with backward.inserting_after(backward.find_nodes(op="placeholder")[-1]):
        seen = backward.call_function(_as_seen(engine, site, form), (placeholder, mark))
    seen.meta = dict(placeholder.meta)
    placeholder.replace_all_uses_with(seen, lambda user: user is not seen)


def _as_seen(engine: _Tried, site: str, form: Groups) -> Callable[..., Tensor]:
    """A function from a tensor that crosses at a site to the one that backward sees."""
    order, group = form.layout

    def seen(x: Tensor, *mark: Tensor) -> Tensor:
        trials = engine.trials
        name = trials.name(site, *mark)
        bits = trials.bits.get(name)
        if bits is None:
            return x
        planes, low, step = encode(x, order, group, bits, trials.rounding == "stochastic", form.of_roots, False)
        result = decode(planes, low, step, None, x.shape, order, group, x.dtype, form.of_roots)
        error = relative_error(result, x)
        trials.decoded.note(name, bits, error, x.dtype, group, trials.rounding)
        return result

    return seen
