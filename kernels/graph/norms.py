"""Batch norms in backward graphs: by the statistics of forward, where what they normalise is decoded."""

import operator
from dataclasses import replace

import torch
from torch import fx

from actfit.kernels.compression.cut import Cut, pairs_of, save
from actfit.kernels.compression.exact import let_results_cross
from actfit.kernels.compression.forms import FixedRange, Groups, Whole
from actfit.kernels.compression.nodes import call, cone, is_pure, without_unused

aten = torch.ops.aten
ALWAYS = 0
# Batch norms, and the place of the argument that says whether the statistics are the batch's.
IN_TRAINING = {
    aten._native_batch_norm_legit_functional.default: 5,
    aten._native_batch_norm_legit.no_stats: 3,
    aten._batch_norm_with_update_functional.default: ALWAYS,
    aten.native_batch_norm.default: 5,
    aten.cudnn_batch_norm.default: 5,
    aten.miopen_batch_norm.default: 5,
}


def without_running_statistics(forward: fx.Graph, backward: fx.Graph, outputs: int) -> None:
    """Let batch norms in backward do without the running statistics, which forward has changed.

    In training these decide nothing but what they become.
    """
    pairs = pairs_of(forward, backward, outputs)
    used = {placeholder for placeholder in pairs.values() if placeholder.users}
    by_statistics_of_the_batch(backward)
    for node in reversed(backward.nodes):
        if node.op == "call_function" and not node.users and is_pure(node):  # as casts and copies of statistics
            backward.erase_node(node)
            continue
        if node.target is aten.native_batch_norm_backward.default and node.args[7]:
            node.args = (*node.args[:3], None, None, *node.args[5:])
    save(forward, outputs, without_unused(pairs, used))


def by_statistics_of_the_batch(graph: fx.Graph) -> None:
    """Let batch norms in training neither take running statistics nor give them."""
    for node in graph.find_nodes(op="call_function", target=aten._native_batch_norm_legit_functional.default):
        if node.args[5]:
            x, weight, bias, _, _, *others = node.args
            node.target, node.args = aten._native_batch_norm_legit.no_stats, (x, weight, bias, *others)
            for result in list(node.users):  # beyond the three that are left
                if not result.users:
                    graph.erase_node(result)


def with_exact_statistics(forward: fx.Graph, backward: fx.Graph, cut: Cut) -> Cut:
    """Let mean and 1/std of batch norms cross, where backward would compute them again from decoded numbers.

    Codes add a variance of their own: with those of 4 bits 1/std would be .4 % too small, of one layer as of the next.
    """
    statistics = list[fx.Node]()
    decoded = {cut.pairs[node] for node, form in cut.forms.items() if isinstance(form, Groups)}
    for norm in backward.find_nodes(op="call_function", target=aten._native_batch_norm_legit.no_stats):
        parts = {part.args[1]: part for part in norm.users}
        if 1 in parts and 2 in parts and not decoded.isdisjoint(cone(norm.args[0])):
            statistics += [parts[1], parts[2]]
            norm.append(parts[2])
            norm.append(parts[1])
            if 0 in parts:
                with backward.inserting_before(parts[2].next):
                    parts[0].replace_all_uses_with(_normalized(backward, norm, parts))
    return _with_statistics(forward, backward, cut, statistics)


def _with_statistics(forward: fx.Graph, backward: fx.Graph, cut: Cut, statistics: list[fx.Node]) -> Cut:
    """Let statistics cross that backward computes."""
    pairs = let_results_cross(forward, backward, cut.pairs, statistics)
    new = [node for node in pairs if node not in cut.pairs]
    for node in new:
        node.args[0].append(node)  # at the end of forward it would hold the norm's other results until then
    return replace(cut, pairs=pairs, forms=cut.forms | dict.fromkeys(new, Whole("a statistic")))


def with_exact_scales(forward: fx.Graph, backward: fx.Graph, cut: Cut) -> Cut:
    """Let layer norms scale gradients by the exact 1/std of a row, where backward computes them from decoded numbers.

    Codes add a variance of their own. What is normalised again has the right one; but 1/std would be too small, of one
    layer as of the next: by .4 % with 4 bits, and by 10 % with 2.
    """
    statistics = list[fx.Node]()
    decoded = {cut.pairs[node] for node, form in cut.forms.items() if isinstance(form, Groups)}
    for node in backward.find_nodes(op="call_function", target=aten.native_layer_norm_backward.default):
        scale, gradient = node.args[4], next((user for user in node.users if user.args[1] == 0), None)
        if gradient is None or scale.op != "call_function" or decoded.isdisjoint(cone(scale)):
            continue
        with backward.inserting_before(scale):
            own = call(backward, operator.getitem, *scale.args)
        scale.replace_all_uses_with(own)
        with backward.inserting_before(gradient.next):
            more = call(backward, aten.sub.Tensor, call(backward, aten.div.Tensor, scale, own), 1)
            # 1/std may be float32, and would make the product so: on a CPU even where the graph says bfloat16.
            if (dtype := gradient.meta["val"].dtype) != torch.float32:
                more = call(backward, aten._to_copy.default, more, dtype=dtype)
            exact = call(backward, aten.addcmul.default, gradient, gradient, more)
        gradient.replace_all_uses_with(exact, lambda user, exact=exact: user is not exact)
        statistics.append(scale)
    return _with_statistics(forward, backward, cut, statistics)


def _normalized(graph: fx.Graph, norm: fx.Node, parts: dict[int, fx.Node]) -> fx.Node:
    """The result of a batch norm by its statistics."""
    x, weight, bias, *_ = norm.args
    y, mean, factor = (parts[place] for place in range(3))
    if weight is not None:
        factor = call(graph, aten.mul.Tensor, factor, weight)
    shift = call(graph, aten.mul.Tensor, mean, factor)
    shift = call(graph, aten.neg.default, shift) if bias is None else call(graph, aten.sub.Tensor, bias, shift)
    channels = [-1, *[1] * (y.meta["val"].dim() - 2)]
    factor, shift = (call(graph, aten.view.default, vector, channels) for vector in (factor, shift))
    made = call(graph, aten.addcmul.default, shift, x, factor)
    dtype = y.meta["val"].dtype
    return made if made.meta["val"].dtype == dtype else call(graph, aten._to_copy.default, made, dtype=dtype)


def on_fixed_range(cut: Cut) -> Cut:
    """Let what batch norms normalise cross in codes of a fixed range."""
    forms = dict(cut.forms)
    for node, form in cut.forms.items():
        norm = next((user for user in node.users if _normalizes(user, node)), None)
        if isinstance(form, Groups) and norm is not None:
            forms[node] = FixedRange(form.bits, form.layout, norm=norm)
    return replace(cut, forms=forms)


def _normalizes(norm: fx.Node, x: fx.Node) -> bool:
    """Whether it is a batch norm of x by the batch's own statistics, its second and third result."""
    place = IN_TRAINING.get(norm.target)
    return place is not None and norm.args[0] is x and (place == ALWAYS or bool(norm.args[place]))
