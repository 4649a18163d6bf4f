"""Fused attention is computed again in backward, from the decoded query, key and value.

Its backward pass has the probabilities from a log-sum-exp, p = exp(q k - l), and takes from the gradients of a row's
logits their mean, which it has from the output: sum(p (do v)) = do o. Both need the l and o of these very q, k and v.
Beside decoded ones, an exact l makes of a logit's error a factor in its probability: no row of p sums to 1. And
a code of o errs in other ways than the codes of v. So l and o are computed of the decoded tensors, and do not cross.
"""

import operator
from typing import Any

import torch
from torch import fx

from kernels.compression.nodes import arguments_of, cone, origin, packet_of

aten = torch.ops.aten


def compute_again(backward: fx.Graph, pairs: dict[fx.Node, fx.Node], coded: set[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Compute attention again in the backward graph; not one with dropout, which would drop others.

    Parameters
    ----------
    pairs
        What crosses: nodes of the forward graph, and the placeholders of the backward graph that they go to.
    coded
        Those that will be coded.

    Returns
    -------
    The pairs that remain; the others' placeholders are erased. The output of the forward graph is not changed yet.
    """
    nodes = {placeholder: node for node, placeholder in pairs.items()}
    approximate = {pairs[node] for node in coded}
    changed = False
    for user in list(backward.nodes):
        source = _source(user, nodes)
        if source is not None and not approximate.isdisjoint(cone(*_read(user))):
            _insert(user, source, nodes, approximate)
            changed = True
    if not changed:
        return pairs
    backward.eliminate_dead_code()
    unused = [placeholder for placeholder in nodes if not placeholder.users]
    for placeholder in unused:
        backward.erase_node(placeholder)
    return {node: placeholder for node, placeholder in pairs.items() if placeholder not in unused}


def beside_a_log_sum_exp(backward: fx.Graph) -> set[fx.Node]:
    """The placeholders that query, key, value and output come from where the log-sum-exp crosses."""
    readers = [node for node in backward.nodes if getattr(_log_sum_exp(node), "op", "") == "placeholder"]
    return {node for reader in readers for node in cone(*_read(reader)) if node.op == "placeholder"}


def _source(user: fx.Node, nodes: dict[fx.Node, fx.Node]) -> fx.Node | None:
    """The attention in the forward graph that an operation is the backward pass of, if it can be computed again."""
    result = nodes.get(_log_sum_exp(user))
    if result is None or result.target is not operator.getitem:
        return None
    source = result.args[0]
    given, own = arguments_of(user), arguments_of(source)
    tensors = [name for name, value in own.items() if isinstance(value, fx.Node)]
    return source if not own.get("dropout_p") and all(name in given for name in tensors) else None


def _log_sum_exp(node: fx.Node) -> Any:
    return arguments_of(node).get("logsumexp")


def _read(user: fx.Node) -> list[fx.Node]:
    """Query, key, value and output, as a backward pass is given them."""
    given = arguments_of(user)
    return [given[name] for name in ("query", "key", "value", "out")]


def _insert(user: fx.Node, source: fx.Node, nodes: dict[fx.Node, fx.Node], approximate: set[fx.Node]) -> None:
    """Compute it before the first use of its output; all who use a coded output are given that."""
    graph, given, own = user.graph, arguments_of(user), arguments_of(source)
    arguments = {name: given[name] if isinstance(value, fx.Node) else value for name, value in own.items()}
    output, log_sum_exp = given["out"], given["logsumexp"]
    while packet_of(output) is aten.alias:
        output = output.args[0]
    is_coded = output in approximate and nodes[output].all_input_nodes == [source]
    order = {node: place for place, node in enumerate(graph.nodes)}
    first = min([user, *(output.users if is_coded else [])], key=order.__getitem__)
    for node in sorted(cone(*arguments.values()), key=order.__getitem__):
        if order[node] > order[first]:  # it has no gradient, and may come first
            first.prepend(node)
    with graph.inserting_before(first):
        positional = tuple(arguments[name] for name in own)[: len(source.args)]
        again = graph.call_function(source.target, positional, {name: arguments[name] for name in source.kwargs})
        results = [graph.call_function(operator.getitem, (again, place)) for place in (0, nodes[log_sum_exp].args[1])]
    again.meta = {**origin(user), "val": source.meta["val"]}
    for result in results:
        result.meta = {**origin(user), "val": source.meta["val"][result.args[1]]}
    for old, new in zip((given["out"], log_sum_exp), results, strict=True):
        user.replace_input_with(old, new)
    if is_coded:
        output.replace_all_uses_with(results[0])
