"""Codes in the graphs of a block: encoding in forward, decoding in backward."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import getitem
from typing import Any

import torch
from torch import SymInt, Tensor, fx

from actfit.kernels.compression.cut import Cut, save
from actfit.kernels.compression.forms import Bits, FixedRange, Groups
from actfit.kernels.compression.nodes import cone, origin, packet_of
from actfit.kernels.compression.order import reorder
from actfit.kernels.graph.codes import (
    decode,
    encode,
    encode_input,
    encode_normalized,
    operation,
    pack,
    unpack,
)
from actfit.kernels.graph.plain import decoded, encoded, is_plain, traced
from actfit.kernels.graph.stretches import Decoding, decode_in_stretches

aten = torch.ops.aten
Called = Callable[[Callable[..., Any]], Callable[..., Any]]  # from a function to what a graph calls


def put_codes(
    forward: fx.GraphModule, backward: fx.GraphModule, cut: Cut, rounding: str, compiles: bool = False
) -> None:
    """Encode after the last use in forward, and decode in backward, right before each stretch that reads it.

    compiles: whether Inductor compiles the graphs. It makes and reads codes of 8 and 4 bits in loops of its own.
    """
    called: Called = operation if compiles else lambda function: function
    crossing: list[fx.Node] = []
    decodings: dict[fx.Node, Decoding] = {}
    coded = cut.coded
    reorder(backward.graph)
    for node, placeholder in cut.pairs.items():
        if node not in coded:
            crossing.append(node)
            continue
        value: Tensor = node.meta["val"]
        form, carries = coded[node], any(isinstance(size, SymInt) for size in value.shape)
        order = form.layout.order
        plain = form if compiles and not carries and isinstance(form, Groups) and is_plain(value, form) else None
        written = plain if rounding == "nearest" and not _may_be_shared(node) else None
        if written is not None:
            sent = traced(partial(encoded, form=written), [node], after_last_use(node))
        elif isinstance(form, Bits):
            sent = _sent(forward.graph, node, pack, (order, carries), called)
        elif isinstance(form, FixedRange):
            sent = _sent(forward.graph, node, encode_normalized, (form.norm, order, form.bits, carries), called)
        else:
            options = (order, form.layout.group, form.bits, rounding == "stochastic", form.of_roots, carries)
            sent = _sent(forward.graph, node, encode_input if node.op == "placeholder" else encode, options, called)
        crossing += sent
        received = _received(backward.graph, placeholder, sent)
        if plain is not None and (written is not None or plain.bits == 8):  # our kernels write no half bytes
            decodings[placeholder] = partial(_read, received, value, plain)
        else:
            decodings[placeholder] = partial(_decoded, called, received, value, form, carries)
    decode_in_stretches(backward.graph, decodings, cut.pairs.values(), compiles)
    let_cross(forward, backward, cut.outputs, crossing)


def replace_codes(
    forward: fx.GraphModule,
    backward: fx.GraphModule,
    cut: Cut,
    encoding: Callable[[str], Callable[..., Any]],
    decoding: Callable[..., Tensor],
) -> None:
    """Let `encoding(site)` stand for `encode`, and `decoding` for `decode`, in graphs that are not compiled yet.

    What has codes whatever a plan says has no site, and keeps `encode`.
    """
    for made in list(forward.graph.nodes):
        if made.target in (encode, encode_input) and made.args[0] in cut.sites:
            made.target = encoding(cut.sites[made.args[0]])
    for made in backward.graph.find_nodes(op="call_function", target=decode):
        made.target = decoding


def _sent(
    graph: fx.Graph, node: fx.Node, function: Callable[..., Any], options: Sequence[Any], called: Called
) -> list[fx.Node]:
    """Encode a node; the results that cross."""
    with graph.inserting_before(after_last_use(node)):
        made = graph.call_function(called(function), (node, *options))
        known = [given.meta["val"] if isinstance(given, fx.Node) else given for given in options]
        results = (encode if function is encode_input else function)(node.meta["val"], *known)
        sent = [graph.call_function(getitem, (made, place)) for place in range(len(results))]
    made.meta = {**origin(node), "val": results}
    for node_of_result, result in zip(sent, results, strict=True):
        node_of_result.meta = {**origin(node), "val": result}
    return sent


def _may_be_shared(node: fx.Node) -> bool:
    """Whether several blocks may be given it, as an encoder's output: an input to which nothing made of it is added."""
    if node.op != "placeholder":
        return False
    sums = [user for user in node.users if packet_of(user) is aten.add]
    return not any(node in cone(*(part for part in total.all_input_nodes if part is not node)) for total in sums)


def _received(graph: fx.Graph, placeholder: fx.Node, sent: list[fx.Node]) -> list[fx.Node]:
    """Placeholders of codes, before that of the tensor."""
    with graph.inserting_before(placeholder):
        received = [graph.placeholder(f"{placeholder.name}_code") for _ in sent]
    for code, taken in zip(sent, received, strict=True):
        taken.target = taken.name  # generated code takes it by its target, which nothing keeps unique
        taken.meta["val"] = code.meta["val"]
    return received


def _decoded(
    called: Called, codes: list[fx.Node], value: Tensor, form: Bits | Groups, carries: bool, before: fx.Node
) -> fx.Node:
    """The tensor that codes decode to, before an operation that reads it."""
    given = (*codes, ()) if carries else (*codes, None, tuple(value.shape))
    order, graph = form.layout.order, before.graph
    with graph.inserting_before(before):
        if isinstance(form, Bits):
            decoded = graph.call_function(called(unpack), (*given, order))
        else:
            group = 0 if isinstance(form, FixedRange) else form.layout.group
            decoded = graph.call_function(called(decode), (*given, order, group, value.dtype, form.of_roots))
    decoded.meta = {"val": value}
    return decoded


def _read(codes: list[fx.Node], value: Tensor, form: Groups, before: fx.Node) -> fx.Node:
    """As `_decoded`, in operations that Inductor looks into."""
    return traced(partial(decoded, value=value, form=form), codes, before)[0]


def let_cross(forward: fx.GraphModule, backward: fx.GraphModule, outputs: int, crossing: list[fx.Node]) -> None:
    """Make `crossing` the forward graph's outputs for backward, after its own, and recompile both graphs."""
    save(forward.graph, outputs, crossing)
    for module in (forward, backward):
        module.graph.lint()
        module.recompile()


def after_last_use(node: fx.Node) -> fx.Node:
    """The operation right after the node's last use, apart from the output."""
    order = {operation: place for place, operation in enumerate(node.graph.nodes)}
    last = max((user for user in node.users if user.op != "output"), key=order.__getitem__, default=node)
    following = last.next
    while following.op == "placeholder":
        following = following.next
    return following
