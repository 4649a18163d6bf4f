"""Fused attention is computed again in backward, from the decoded query, key and value.

Its backward pass computes the probabilities from a log-sum-exp, p = exp(q k - l), and subtracts from the gradients of a
row's logits their mean, computed from the output: sum(p (do v)) = do o. Both need the l and o of the same q, k and v.
With decoded q and k, an exact l turns a logit's error into a factor of its probability: no row of p sums to 1. And the
error of a coded o differs from that of a coded v. So l and o are computed from the decoded tensors, and do not cross.
"""

import operator
from typing import Any

import torch
from torch import fx

from actfit.kernels.compression.forms import LOG_SUM_EXPS
from actfit.kernels.compression.nodes import arguments_of, cone, origin, packet_of, without_unused

aten = torch.ops.aten
CODED, STATISTIC = ("query", "key", "value", "out"), "logsumexp"  # what all backward passes of attention are given

Arguments = dict[str, Any]  # of an operation, by name


def recompute_attention(
    backward: fx.Graph, pairs: dict[fx.Node, fx.Node], coded: set[fx.Node]
) -> dict[fx.Node, fx.Node]:
    """Compute attention again in the backward graph; not with dropout, which would drop other elements.

    `pairs`, `coded` and the returned pairs are as in `exact.move_to_forward`.
    """
    nodes = {placeholder: node for node, placeholder in pairs.items()}
    used = {placeholder for placeholder in nodes if placeholder.users}
    approximate = {pairs[node] for node in coded}
    changed = False
    for node in list(backward.nodes):
        given = arguments_of(node)
        if not all(name in given for name in (*CODED, STATISTIC)):
            continue
        source = _source(given, nodes)
        if source and not approximate.isdisjoint(cone(*(given[name] for name in CODED))):
            _insert(node, given, source, nodes, approximate)
            changed = True
    if not changed:
        return pairs
    backward.eliminate_dead_code()
    return without_unused(pairs, used)


def inputs_beside_log_sum_exp(backward: fx.Graph, crossing: set[fx.Node]) -> set[fx.Node]:
    """The placeholders used in an operation together with a crossing log-sum-exp, other than by way of gradients."""
    beside: set[fx.Node] = set()
    for node in backward.nodes:
        arguments = arguments_of(node)
        if any(_unaliased(arguments.get(name)) in crossing for name in LOG_SUM_EXPS):
            for argument in node.all_input_nodes:
                placeholders = {part for part in cone(argument) if part.op == "placeholder"}
                beside |= placeholders if placeholders <= crossing else set()
    return beside


def _source(given: Arguments, nodes: dict[fx.Node, fx.Node]) -> fx.Node | None:
    """The attention in the forward graph to a backward pass; None if it cannot be computed again."""
    result = nodes.get(_unaliased(given[STATISTIC]))
    source = result.args[0] if result is not None and result.target is operator.getitem else None
    if not isinstance(source, fx.Node) or not hasattr(source.target, "_schema"):
        return None
    own = arguments_of(source)
    tensors = [name for name, value in own.items() if isinstance(value, fx.Node)]
    return source if not own.get("dropout_p") and all(name in given for name in tensors) else None


def _unaliased(node: fx.Node) -> fx.Node:
    """What a node is an alias of."""
    while isinstance(node, fx.Node) and packet_of(node) in (aten.alias, aten.detach):
        node = node.all_input_nodes[0]
    return node


def _insert(
    node: fx.Node, given: Arguments, source: fx.Node, nodes: dict[fx.Node, fx.Node], approximate: set[fx.Node]
) -> None:
    """Compute `source` before its backward pass, and replace that pass's output and log-sum-exp by the results.

    An output that would be coded is replaced in all its users, and computed before the first of them.
    """
    output, log_sum_exp = _unaliased(given["out"]), _unaliased(given[STATISTIC])
    is_coded = output in approximate and nodes[output].all_input_nodes == [source]
    recomputed = _copy_before(node, given, source, [node, *(output.users if is_coded else [])])
    graph, result_indices = node.graph, (0, nodes[log_sum_exp].args[1])
    with graph.inserting_before(recomputed.next):
        results = [graph.call_function(operator.getitem, (recomputed, place)) for place in result_indices]
    for result in results:
        result.meta = {**origin(node), "val": source.meta["val"][result.args[1]]}
    for old, new in zip((given["out"], given[STATISTIC]), results, strict=True):
        node.replace_input_with(old, new)
    if is_coded:
        output.replace_all_uses_with(results[0])


def _copy_before(user: fx.Node, given: Arguments, source: fx.Node, users: list[fx.Node]) -> fx.Node:
    """Copy the forward operation `source` before the first of `users`, with what is `given` by the same names."""
    graph, own = user.graph, arguments_of(source)
    arguments = {name: given[name] if isinstance(value, fx.Node) else value for name, value in own.items()}
    order = {node: place for place, node in enumerate(graph.nodes)}
    first = min(users, key=order.__getitem__)
    for node in sorted(cone(*arguments.values()), key=order.__getitem__):
        if order[node] > order[first]:  # it depends on no gradient, and may come earlier
            first.prepend(node)
    with graph.inserting_before(first):
        positional = tuple(arguments[name] for name in own)[: len(source.args)]
        copy = graph.call_function(source.target, positional, {name: arguments[name] for name in source.kwargs})
    copy.meta = {**origin(user), "val": source.meta["val"]}
    return copy
