"""What one block returns and the next one saves: recomputed, where it can be, from what the first one saves.

A layer of BERT ends in a layer norm, and saves what that normalizes; the next layer would save the result as well. As
blocks are captured one by one, no partition of a graph sees both. In place of such an input the next block saves a
tensor without elements, which holds what the input is computed from; backward computes it where it is first read.
"""

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import SymInt, Tensor, fx

from actfit.kernels import private
from actfit.kernels.compression.cut import Cut
from actfit.kernels.compression.forms import SMALLEST
from actfit.kernels.compression.layout import hint
from actfit.kernels.compression.nodes import is_floating_point, is_product, is_pure, walk_back
from actfit.kernels.errors import KernelError
from actfit.kernels.graph.execute import Run, execute
from actfit.kernels.graph.held import Held, version
from actfit.kernels.graph.norms import by_statistics_of_the_batch

SHARING = "sharing"  # a key of what goes with a graph
# Blocks in a row whose inputs are recomputed, each from the one before: one input of three is saved, and on average a
# block's cheap operations run once more. Without a limit that would be as often as half the number of blocks.
DEPTH = 2


@dataclass(frozen=True)
class Recomputation:
    """How a result of a forward graph is computed from what that graph saves, and from its parameters.

    Attributes
    ----------
    place
        Of the result, among the graph's.
    sources
        Names of nodes: saved tensors, parameters, buffers and sizes.
    run
        Takes the sources, and gives the result.
    """

    place: int
    sources: tuple[str, ...]
    run: Run


class Result:
    """A result of one call of a block; it holds neither the result nor what the block saves.

    Attributes
    ----------
    depth
        The number of results that are computed for it, one from the other.
    """

    def __init__(self, y: Tensor, run: Run, sources: list[Any]) -> None:
        self._run, self._y, self._sources = run, Held([y], _state), Held(sources, _state)
        self.depth = 1 + max((x.result.depth for x in sources if hasattr(x, "result")), default=0)

    def placeholder(self) -> Tensor | None:
        """What is saved in its place, and holds what it is computed from; None: it must be saved itself."""
        (y,), sources = self._y.values(), self._sources.values()
        if self.depth > DEPTH or not self._y.are_as_before([y]) or not self._sources.are_as_before(sources):
            return None
        empty: Any = y.new_empty(0)
        empty.result, empty.recompute = self, partial(self._recompute, sources)
        return empty

    def _recompute(self, sources: list[Any]) -> Tensor:
        (y,) = self._y.values()
        if self._y.are_as_before([y]):  # somebody holds it
            return y.detach()
        if not self._sources.are_as_before(sources):
            raise KernelError(
                "inputs and weights of a compressed block must not be changed in place before backward, which reads"
                " them; change clones, or call remove() of the model's handle"
            )
        (made,) = self._run([recomputed(x) for x in sources])
        return made


def _state(x: Any) -> Any:
    """The version and the place of a tensor, and its bytes, which FSDP frees after a block has run; a size itself."""
    if not isinstance(x, Tensor):
        return x
    place = None if private.is_fake(x) else x.data_ptr()  # the numbers of `x.data = other` lie elsewhere
    return version(x), place, x.untyped_storage().nbytes()


def _plain(x: Any) -> Any:
    """The tensor itself, or one that neither a view's base nor a graph goes with: autograd saves just this object."""
    return x.detach() if isinstance(x, Tensor) and (x._is_view() or x.requires_grad) else x


def recomputed(x: Any) -> Any:
    """What a saved tensor stands for."""
    return x.recompute() if hasattr(x, "recompute") else x


def share(
    forward: fx.GraphModule, backward: fx.Graph, cut: Cut, static: frozenset[int], is_dear: Callable[[fx.Node], bool]
) -> None:
    """Let a forward graph tell of its results, and a backward graph read inputs that may be recomputed.

    Parameters
    ----------
    static
        Positions of inputs with a fixed address during training: parameters and buffers.
    is_dear
        Whether backward must not compute it again.
    """
    inputs = forward.graph.find_nodes(op="placeholder")
    fixed = {inputs[place] for place in static}
    given = [node for node in cut.pairs if node.op == "placeholder" and node not in fixed and _is_large(node)]
    for placeholder in [cut.pairs[node] for node in given if cut.pairs[node].users]:
        first = next(node for node in backward.nodes if node in placeholder.users)
        with backward.inserting_before(first):
            made = backward.call_function(recomputed, (placeholder,))
        made.meta = dict(placeholder.meta)
        placeholder.replace_all_uses_with(made, lambda user, made=made: user is not made)
    (last,) = forward.graph.find_nodes(op="output")
    kept = {node for node in cut.pairs if node not in cut.coded}
    made_of = [
        _recomputation(forward, place, node, kept, fixed, is_dear)
        for place, node in enumerate(last.args[0][: cut.outputs])
        if isinstance(node, fx.Node) and node not in kept and node.op != "placeholder" and _is_large(node)
    ]
    forward.meta[SHARING] = [node.name for node in given], [found for found in made_of if found is not None]


def _is_large(node: fx.Node) -> bool:
    return is_floating_point(node) and hint(node.meta["val"].numel()) >= SMALLEST


def _recomputation(
    forward: fx.GraphModule,
    place: int,
    result: fx.Node,
    kept: set[fx.Node],
    fixed: set[fx.Node],
    is_dear: Callable[[fx.Node], bool],
) -> Recomputation | None:
    """How the result is computed by cheap operations; None: it cannot."""

    def is_source(node: fx.Node) -> bool:
        is_size = node.op == "placeholder" and isinstance(node.meta.get("val"), SymInt)
        return node in kept or node in fixed or is_size

    sources, inside = walk_back([result], is_source)
    if any(node.op == "placeholder" or is_dear(node) or is_product(node) or not is_pure(node) for node in inside):
        return None
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in sources:
        copies[node] = graph.placeholder(node.name)
    for node in inside:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output((copies[result],))
    by_statistics_of_the_batch(graph)
    graph.eliminate_dead_code()
    for node in [node for node in sources if not copies[node].users]:  # running statistics
        graph.erase_node(copies[node])
    names = tuple(node.target for node in graph.find_nodes(op="placeholder"))
    run = execute(fx.GraphModule(forward, graph))
    return Recomputation(place, names, run)


def no_results() -> MutableMapping[Tensor, Result]:
    """What `sharing` adds to: each `Result` by its tensor, which is held weakly."""
    return private.WeakTensorKeyDictionary()  # type: ignore[no-any-return]


def sharing(module: fx.GraphModule, run: Run, results: MutableMapping[Tensor, Result]) -> Run:
    """What runs a forward graph: it saves no inputs that are among `results`, and adds its own to these."""
    inputs, recomputations = module.meta.get(SHARING, ((), ()))
    if not inputs and not recomputations:
        return run
    (last,) = module.graph.find_nodes(op="output")
    placed = {node.name: place for place, node in enumerate(module.graph.find_nodes(op="placeholder"))}
    saved = {node.name: place for place, node in enumerate(last.args[0]) if isinstance(node, fx.Node)}
    named = {name for found in recomputations for name in found.sources}
    weights = {name: placed[name] for name in named.intersection(placed).difference(inputs)}  # and sizes

    def shared(given: list[Any]) -> Any:
        sources = {name: given[place] for name, place in weights.items()}
        made = list(run(given))
        if private.saved_tensors_are_packed():
            return made
        for name in inputs:
            known = results.get(made[saved[name]])
            empty = None if known is None else known.placeholder()
            made[saved[name]] = made[saved[name]] if empty is None else empty
        for name in named.difference(weights):
            sources[name] = made[saved[name]] = _plain(made[saved[name]])
        for found in recomputations:
            y = made[found.place]
            results[y] = Result(y, found.run, [sources[name] for name in found.sources])
        return made

    return shared
