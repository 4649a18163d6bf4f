"""Bytes that a graph's tensors take while it runs, each until its last use; a view holds what it is a view of."""

import copy
import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

from torch import fx

from actfit.kernels.compression import forms
from actfit.kernels.compression.nodes import is_view, tensors_of
from actfit.kernels.graph.fusion import fused, overwritten

TRIALS = 50  # ways to hold that are tried at most, as each takes a pass over the graph
Span = tuple[int, int]  # the places of the operations that make a tensor and read it last


def live_bytes(graph: fx.Graph, inputs: bool = True) -> list[int]:
    """The bytes of the graph's results, and perhaps of its inputs, at each of its nodes."""
    changes = [0] * (len(graph.nodes) + 1)
    for node, (start, end) in spans(graph).items():
        if inputs or node.op != "placeholder":
            changes[start] += _bytes_of(node)
            changes[end + 1] -= _bytes_of(node)
    return list(accumulate(changes))[:-1]


def spans(graph: fx.Graph) -> dict[fx.Node, Span]:
    """The span of each tensor that is no view; of several results, each is a tensor."""
    places = {node: place for place, node in enumerate(graph.nodes)}
    owners: dict[fx.Node, fx.Node] = {}
    ends: dict[fx.Node, int] = {}
    for node, place in places.items():
        shares = is_view(node) or node.target is overwritten
        owners[node] = owners[node.all_input_nodes[0]] if shares else node
        ends[owners[node]] = max(ends.get(owners[node], place), *(places[user] for user in node.users), place)
    return {
        node: (places[node.args[0] if node.target is operator.getitem else node], end)
        for node, end in ends.items()
        if not isinstance(node.meta.get("val"), list | tuple)
    }


def decode_once(graph: fx.Graph, decodings: Iterable[Sequence[fx.Node]], compiles: bool) -> None:
    """Let what is decoded several times be held from one use to the next, as long as no more bytes are alive at once
    than without.

    decodings: of each tensor, in order. compiles: whether Inductor compiles the graph.
    """
    kept = dict[fx.Node, fx.Node]()
    limit = _most(graph, kept, compiles)
    waiting = [sorted((pair for made in decodings for pair in pairwise(made)), key=lambda pair: -_bytes_of(pair[0]))]
    for _ in range(TRIALS):
        if not waiting:
            break
        pairs = waiting.pop()
        tried = kept | {later: earlier for earlier, later in pairs}
        if _most(graph, tried, compiles) <= limit:
            kept = tried
        elif len(pairs) > 1:  # the first half next, of the largest
            waiting += [pairs[len(pairs) // 2 :], pairs[: len(pairs) // 2]]
    _hold(graph, kept)


def _hold(graph: fx.Graph, kept: Mapping[fx.Node, fx.Node]) -> None:
    """Replace decodings by earlier ones."""
    for later, earlier in kept.items():
        while earlier in kept:
            earlier = kept[earlier]
        later.replace_all_uses_with(earlier)
        graph.erase_node(later)


def _most(graph: fx.Graph, kept: Mapping[fx.Node, fx.Node], compiles: bool) -> int:
    """The most bytes alive at once with some decodings replaced."""
    trial = copy.deepcopy(graph)
    of_trial = dict(zip(graph.nodes, trial.nodes, strict=True))
    _hold(trial, {of_trial[later]: of_trial[earlier] for later, earlier in kept.items()})
    return max(live_bytes(fused(fx.GraphModule(graph.owning_module, trial)).graph if compiles else trial))


def _bytes_of(node: fx.Node) -> int:
    return sum(map(forms.bytes_of, tensors_of(node)))
