"""Codes, put between a forward graph and its backward graph."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from kernels.compression import codes, private
from kernels.compression.crossing import Crossing
from kernels.compression.exact import move_to_forward
from kernels.compression.forms import (
    Bits,
    Form,
    Groups,
    Settings,
    Whole,
    bytes_of,
    coded_bytes,
    form_of,
    hint,
    packet_of,
)
from kernels.engine.elements import dtype_name

aten = torch.ops.aten
PRODUCTS = (aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.convolution, aten.convolution_backward)


def crossings(
    forward: fx.GraphModule, backward: fx.GraphModule, outputs: int, static: frozenset[int], settings: Settings
) -> list[Crossing]:
    """Code what crosses, in both graphs, and tell of it; nothing of inputs that others hold.

    Parameters
    ----------
    outputs
        Of the forward graph, that are not for backward; they come first.
    static
        Places of inputs that stay where they are for the whole training: parameters and buffers.
    """
    (last,) = forward.graph.find_nodes(op="output")
    placeholders = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    pairs = {node: placeholders[node.name] for node in last.args[0][outputs:]}
    inputs = _inputs_without_gradient(forward.graph, backward.graph, static)
    pairs = move_to_forward(forward.graph, backward.graph, pairs, set(_coded(_forms(pairs, inputs, settings))))
    forms = _forms(pairs, inputs, settings)
    coded = _coded(forms)
    crossing: list[fx.Node] = []
    for node, placeholder in pairs.items():
        crossing += _code(forward, backward, node, placeholder, coded[node], settings) if node in coded else [node]
    last.args = ((*last.args[0][:outputs], *crossing),)
    for module in (forward, backward):
        module.graph.lint()
        module.recompile()
    return [_row(node, form) for node, form in forms.items()]


def _forms(pairs: dict[fx.Node, fx.Node], inputs: set[fx.Node], settings: Settings) -> dict[fx.Node, Form]:
    """The forms of the tensors that cross; none of inputs that others hold."""
    tensors = [node for node in pairs if node not in inputs and isinstance(node.meta.get("val"), Tensor)]
    return {node: form_of(node, pairs[node], settings.bits) for node in tensors}


def _coded(forms: dict[fx.Node, Form]) -> dict[fx.Node, Bits | Groups]:
    return {node: form for node, form in forms.items() if not isinstance(form, Whole)}


def _inputs_without_gradient(forward: fx.Graph, backward: fx.Graph, static: frozenset[int]) -> set[fx.Node]:
    """Parameters, buffers and batches: others hold them. An input with a gradient comes from a graph before this."""
    (last,) = backward.find_nodes(op="output")
    gradients = last.args[0]
    nodes = forward.find_nodes(op="placeholder")
    return {
        node
        for place, node in enumerate(nodes)
        if place in static or place >= len(gradients) or gradients[place] is None
    }


def _row(node: fx.Node, form: Form) -> Crossing:
    value: Tensor = node.meta["val"]
    stack = list(node.meta.get("nn_module_stack", {}).values())
    operation = "an input" if node.op == "placeholder" else node.meta.get("original_aten", node.target)
    if isinstance(form, Whole):
        text, reason = "whole", form.reason
    else:
        text, reason = "1 bit" if isinstance(form, Bits) else f"{form.bits} bits", ""
    return Crossing(
        private.module_name(stack[-1][0]) if stack else "",
        str(operation).removesuffix(".default"),
        tuple(hint(length) for length in value.shape),
        dtype_name(value.dtype),
        text,
        reason,
        bytes_of(value),
        coded_bytes(value, form),
    )


def _code(
    forward: fx.GraphModule,
    backward: fx.GraphModule,
    node: fx.Node,
    placeholder: fx.Node,
    form: Bits | Groups,
    settings: Settings,
) -> list[fx.Node]:
    """What crosses in the stead of a node: encoded after its last use, decoded before each stretch of uses.

    To encode at once would save no less, and a code that Inductor fuses with the last use reads the tensor once. To
    decode once for all uses would keep the tensor whole from the first of them to the last.
    """
    value = node.meta["val"]
    encode, decode = _functions(value, form, settings)
    names = [f"{node.name}_{part}" for part in ("minimum", "step", "field", "field2", "field3")]
    made = _inline(forward.graph, private.trace(encode, value), [node], _after_last_use(node), names)
    with backward.graph.inserting_before(placeholder):
        crossing = [backward.graph.placeholder(one.name) for one in made]
    for sent, received in zip(made, crossing, strict=True):
        sent.meta = {**_origin(node), **sent.meta}
        received.meta["val"] = sent.meta["val"]
    decoding = private.trace(decode, *(one.meta["val"] for one in made))
    before: fx.Node | None = None
    for users in _stretches(placeholder):
        product = None if before is None else _last_product(before, users[0])
        parts = crossing if product is None else [*crossing[:-1], _after(product, crossing[-1], users[0])]
        (before,) = _inline(backward.graph, decoding, parts, users[0], [f"{node.name}_decoded"])
        for user in users:
            user.replace_input_with(placeholder, before)
    backward.graph.erase_node(placeholder)
    return made


def _origin(node: fx.Node) -> dict[str, Any]:
    """What tells where a node comes from, and in which part of the saved tensors it stands."""
    names = ("nn_module_stack", "stack_trace", "saved_tensor_with_no_vc_check", "partitioner_tag")
    return {name: node.meta[name] for name in names if name in node.meta}


def _functions(value: Tensor, form: Bits | Groups, settings: Settings) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Encode and decode, from a list of tensors to a list of tensors."""
    places = form.places
    sizes = [value.shape[dim] for dim in places.order[value.dim() - places.static :]]

    def encode(x: Tensor) -> list[Tensor]:
        groups = places.split(x)
        if isinstance(form, Bits):
            return [codes.encode_bits(groups)]
        noise = private.uniform(groups) if settings.rounding == "stochastic" else None
        minimum, step, fields = codes.encode(groups, form.bits, noise)
        return [minimum, step, *fields]

    def decode(*parts: Tensor) -> list[Tensor]:
        if isinstance(form, Bits):
            return [places.join(codes.decode_bits(parts[0]), sizes)]
        whole = codes.Codes(parts[0], parts[1], parts[2:])
        return [places.join(codes.decode(whole, form.bits, value.dtype), sizes)]

    return encode, decode


def _inline(
    graph: fx.Graph, traced: fx.GraphModule, arguments: list[fx.Node], before: fx.Node, names: list[str]
) -> list[fx.Node]:
    """Copies of a traced function's operations, and those of them that are its results, under these names."""
    (output,) = traced.graph.find_nodes(op="output")
    named = dict(zip(output.args[0], names, strict=False))
    copies: dict[fx.Node, fx.Node] = {}
    given = iter(arguments)
    with graph.inserting_before(before):
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                copies[node] = next(given)
            elif node.op != "output":
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), copies.__getitem__)
                copies[node] = graph.create_node(node.op, node.target, args, kwargs, named.get(node))
                copies[node].meta = dict(node.meta)
    return [copies[node] for node in output.args[0]]


def _stretches(node: fx.Node) -> list[list[fx.Node]]:
    """The users of a node in their order, parted where a product or the like stands between them."""
    stretches: list[list[fx.Node]] = []
    parted = True
    for one in node.graph.nodes:
        if one in node.users:
            if parted:
                stretches.append([])
            stretches[-1].append(one)
            parted = False
        parted = parted or _is_product(one)
    return stretches


def _last_product(source: fx.Node, end: fx.Node) -> fx.Node | None:
    """The last product before `end` into which `source` goes."""
    reached, last = {source}, None
    for one in source.graph.nodes:
        if one is end:
            break
        if not reached.isdisjoint(one.all_input_nodes):
            reached.add(one)
            last = one if _is_product(one) and isinstance(one.meta.get("val"), Tensor) else last
    return last


def _after(product: fx.Node, field: fx.Node, before: fx.Node) -> fx.Node:
    """The field, but not before a product is there.

    Or Inductor computes the uses on both sides of the product in one kernel, because they read the same codes, and
    holds the results of both.
    """

    def wait(field: Tensor, product: Tensor) -> list[Tensor]:
        return [field | (product.flatten()[:1].to(torch.int32) & 0)]

    traced = private.trace(wait, field.meta["val"], product.meta["val"])
    (waiting,) = _inline(before.graph, traced, [field, product], before, [f"{field.name}_after"])
    return waiting


def _is_product(node: fx.Node) -> bool:
    """Whether it is an operation that Inductor does not fuse, and that takes most of the time."""
    packet = packet_of(node)
    return packet in PRODUCTS or "attention" in str(packet)


def _after_last_use(node: fx.Node) -> fx.Node:
    """The operation before which nothing uses the node any more, but for the output."""
    order = {one: place for place, one in enumerate(node.graph.nodes)}
    last = max((user for user in node.users if user.op != "output"), key=order.__getitem__, default=node)
    following = last.next
    while following.op == "placeholder":
        following = following.next
    return following
