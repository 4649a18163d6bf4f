"""Fused attention is computed again in backward, from the decoded query, key and value.

Its backward pass has the probabilities from a log-sum-exp, p = exp(q k - l), and takes from the gradients of a row's
logits their mean, which it has from the output: sum(p (do v)) = do o. Both need the l and o of these very q, k and v.
Beside decoded ones, an exact l makes of a logit's error a factor in its probability: no row of p sums to 1. And
a code of o errs in other ways than the codes of v. So l and o are computed of the decoded tensors, and do not cross.
"""

import operator
from typing import NamedTuple

import torch
from torch import fx

from kernels.compression.forms import LOG_SUM_EXPS
from kernels.compression.nodes import arguments_of, cone, origin, packet_of, without_unused

aten = torch.ops.aten


class BackwardPass(NamedTuple):
    """An attention's backward pass, and what it is given."""

    node: fx.Node
    query: fx.Node
    key: fx.Node
    value: fx.Node
    out: fx.Node
    logsumexp: fx.Node


def compute_again(backward: fx.Graph, pairs: dict[fx.Node, fx.Node], coded: set[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Compute attention again in the backward graph; not one with dropout, which would drop others.

    `pairs` and `coded` are as in `exact.move_to_forward`, and so are the pairs that it returns.
    """
    nodes = {placeholder: node for node, placeholder in pairs.items()}
    used = {placeholder for placeholder in nodes if placeholder.users}
    approximate = {pairs[node] for node in coded}
    changed = False
    for node in list(backward.nodes):
        call = _backward_pass(node)
        source = _source(call, nodes) if call else None
        if call and source and not approximate.isdisjoint(cone(call.query, call.key, call.value, call.out)):
            _insert(call, source, nodes, approximate)
            changed = True
    if not changed:
        return pairs
    backward.eliminate_dead_code()
    return without_unused(pairs, used)


def beside_a_log_sum_exp(backward: fx.Graph, crossing: set[fx.Node]) -> set[fx.Node]:
    """The placeholders whose values go into an operation together with a log-sum-exp that crosses, by no gradient."""
    found: set[fx.Node] = set()
    for node in backward.nodes:
        given = arguments_of(node)
        if any(_unaliased(given.get(name)) in crossing for name in LOG_SUM_EXPS):
            for one in node.all_input_nodes:
                placeholders = {part for part in cone(one) if part.op == "placeholder"}
                found |= placeholders if placeholders <= crossing else set()
    return found


def _backward_pass(node: fx.Node) -> BackwardPass | None:
    given = arguments_of(node)
    names = BackwardPass._fields[1:]
    return BackwardPass(node, *(given[name] for name in names)) if all(name in given for name in names) else None


def _source(call: BackwardPass, nodes: dict[fx.Node, fx.Node]) -> fx.Node | None:
    """The attention in the forward graph that this is the backward pass of, if it can be computed again."""
    result = nodes.get(_unaliased(call.logsumexp))
    source = result.args[0] if result is not None and result.target is operator.getitem else None
    if not isinstance(source, fx.Node) or not hasattr(source.target, "_schema"):
        return None
    given, own = arguments_of(call.node), arguments_of(source)
    tensors = [name for name, value in own.items() if isinstance(value, fx.Node)]
    return source if not own.get("dropout_p") and all(name in given for name in tensors) else None


def _unaliased(node: fx.Node) -> fx.Node:
    while isinstance(node, fx.Node) and packet_of(node) is aten.alias:
        node = node.all_input_nodes[0]
    return node


def _insert(call: BackwardPass, source: fx.Node, nodes: dict[fx.Node, fx.Node], approximate: set[fx.Node]) -> None:
    """Compute `source` before its backward pass, which is given the results.

    An output that would be coded is replaced for all who use it, and computed before the first of them.
    """
    output, log_sum_exp = _unaliased(call.out), _unaliased(call.logsumexp)
    is_coded = output in approximate and nodes[output].all_input_nodes == [source]
    again = _copied(call.node, source, [call.node, *(output.users if is_coded else [])])
    graph, places = call.node.graph, (0, nodes[log_sum_exp].args[1])
    with graph.inserting_before(again.next):
        results = [graph.call_function(operator.getitem, (again, place)) for place in places]
    for result in results:
        result.meta = {**origin(call.node), "val": source.meta["val"][result.args[1]]}
    for old, new in zip((call.out, call.logsumexp), results, strict=True):
        call.node.replace_input_with(old, new)
    if is_coded:
        output.replace_all_uses_with(results[0])


def _copied(user: fx.Node, source: fx.Node, users: list[fx.Node]) -> fx.Node:
    """The operation of the forward graph, before the first of `users`, given what `user` is under the same names."""
    graph, given, own = user.graph, arguments_of(user), arguments_of(source)
    arguments = {name: given[name] if isinstance(value, fx.Node) else value for name, value in own.items()}
    order = {node: place for place, node in enumerate(graph.nodes)}
    first = min(users, key=order.__getitem__)
    for node in sorted(cone(*arguments.values()), key=order.__getitem__):
        if order[node] > order[first]:  # it has no gradient, and may come first
            first.prepend(node)
    with graph.inserting_before(first):
        positional = tuple(arguments[name] for name in own)[: len(source.args)]
        again = graph.call_function(source.target, positional, {name: arguments[name] for name in source.kwargs})
    again.meta = {**origin(user), "val": source.meta["val"]}
    return again
