"""Insert encoding into a forward graph, and decoding into its backward graph."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import SymInt, Tensor, fx

from actfit.kernels.compression import codes, opaque, private
from actfit.kernels.compression.crossing import Crossing
from actfit.kernels.compression.cut import Cut, module_of, operation_of
from actfit.kernels.compression.decoding import Decoder, decode_where_used
from actfit.kernels.compression.forms import Bits, FixedRange, Form, Groups, Whole, bytes_of, coded_bytes
from actfit.kernels.compression.layout import hint
from actfit.kernels.compression.nodes import inline, origin
from actfit.kernels.compression.regions import work_in_parts
from actfit.kernels.engine.elements import dtype_name
from actfit.kernels.methods.approximate_activations import fixed_range_error
from actfit.kernels.methods.expected_error import expected_error

Function = Callable[..., list[Tensor]]
Functions = tuple[Function, Function, Function | None]


class Graphs(NamedTuple):
    """Encoding, decoding and, on a CPU, joining, which `Decoder` explains."""

    encoding: fx.GraphModule
    decoding: fx.GraphModule
    joining: fx.GraphModule | None


Traced = dict[tuple[str, Bits | Groups], Graphs]


def put_codes(forward: fx.GraphModule, backward: fx.GraphModule, cut: Cut, rounding: str) -> None:
    """Encode in the forward graph and decode in the backward graph, so that codes cross."""
    crossing: list[fx.Node] = []
    decoders: dict[fx.Node, Decoder] = {}
    traced: Traced = {}
    coded = cut.coded
    for node, placeholder in cut.pairs.items():
        if node in coded:
            graphs = _graphs(node.meta["val"], coded[node], rounding, traced)
            encoded, received = _encoded(forward, backward, node, placeholder, graphs.encoding)
            decoders[placeholder] = Decoder(received, graphs.decoding, graphs.joining)
            crossing += encoded
        else:
            crossing.append(node)
    work_in_parts(backward.graph, decode_where_used(backward.graph, decoders, set(cut.pairs.values())))
    let_cross(forward, backward, cut.outputs, crossing)


def let_cross(forward: fx.GraphModule, backward: fx.GraphModule, outputs: int, crossing: list[fx.Node]) -> None:
    """Make `crossing` the forward graph's outputs for backward, after its own, and recompile both graphs."""
    (last,) = forward.graph.find_nodes(op="output")
    last.args = ((*last.args[0][:outputs], *crossing),)
    for module in (forward, backward):
        module.graph.lint()
        module.recompile()


def crossings(cut: Cut, rounding: str) -> list[Crossing]:
    """The report's rows of all tensors that cross."""
    return [_row(node, form, cut.sites.get(node, ""), rounding) for node, form in cut.forms.items()]


def _row(node: fx.Node, form: Form, site: str, rounding: str) -> Crossing:
    value: Tensor = node.meta["val"]
    if isinstance(form, Whole):
        text, reason = "whole", form.reason
    elif isinstance(form, Groups):
        text, reason = f"{form.bits} bits" + (" of roots" if form.of_roots else ""), ""
    else:
        text, reason = "1 bit" if isinstance(form, Bits) else "computed again", ""
    return Crossing(
        module_of(node),
        operation_of(node),
        tuple(hint(length) for length in value.shape),
        dtype_name(value.dtype),
        text,
        reason,
        bytes_of(value),
        coded_bytes(value, form),
        _error(form, rounding),
        site,
    )


def _error(form: Form, rounding: str) -> float:
    """Of decoded values, expected if they are normally distributed; 0 for other forms, and for roots."""
    if isinstance(form, FixedRange):
        return fixed_range_error(form.bits)
    if isinstance(form, Groups) and not form.of_roots:
        return expected_error(form.bits, form.layout.group, rounding)
    return 0.0


def _encoded(
    forward: fx.GraphModule, backward: fx.GraphModule, node: fx.Node, placeholder: fx.Node, encoding: fx.GraphModule
) -> tuple[list[fx.Node], list[fx.Node]]:
    """Encode a node after its last use; its codes, and their placeholders before its own in the backward graph.

    Encoding right away would save no memory, and Inductor may fuse encoding with the last use.
    """
    names = [f"{node.name}_{part}" for part in ("minimum", "step", "field", "field2", "field3")]
    encoded = inline(forward.graph, encoding, [node], after_last_use(node), names)
    with backward.graph.inserting_before(placeholder):
        crossing = [backward.graph.placeholder(sent.name) for sent in encoded]
    for sent, received in zip(encoded, crossing, strict=True):
        sent.meta = {**origin(node), **sent.meta}
        received.meta["val"] = sent.meta["val"]
    return encoded, crossing


def _graphs(value: Tensor, form: Bits | Groups, rounding: str, traced: Traced) -> Graphs:
    """The graphs, shared by like tensors: tracing takes longer than all else here."""
    key = (str((value.shape, value.stride(), value.dtype, value.device)), form)
    if key not in traced:
        encode, decode, join = _functions(value, form, rounding)
        encoding = private.trace(encode, value)
        decoding = private.trace(decode, *_results(encoding))
        traced[key] = Graphs(encoding, decoding, None if join is None else private.trace(join, *_results(decoding)))
    return traced[key]


def _results(traced: fx.GraphModule) -> list[Tensor]:
    (output,) = traced.graph.find_nodes(op="output")
    return [node.meta["val"] for node in output.args[0]]


def _functions(value: Tensor, form: Bits | Groups, rounding: str) -> Functions:
    """Functions that encode, decode and join, each from tensors to a list of tensors."""
    layout, sizes = form.layout, form.layout.sizes(value)
    if isinstance(form, Groups) and opaque.suits(value, layout):
        return *_opaque(value.dtype, form, rounding, sizes), None

    def encode(x: Tensor) -> list[Tensor]:
        if isinstance(form, Bits):
            return [codes.encode_bits(layout.split(x))]
        written = _is_written_first(x)
        groups = layout.split(private.in_memory(x) if written else x)
        noise = private.uniform(groups) if rounding == "stochastic" else None
        minimum, step, fields = codes.encode(groups, form.bits, noise, written, form.of_roots)
        return [minimum, step, *fields]

    def decode(*encoded: Tensor) -> list[Tensor]:
        if isinstance(form, Bits):
            return [codes.decode_bits_parts(encoded[0])]
        minimum, step, *fields = encoded
        made = codes.Codes(minimum, step, tuple(fields))
        return [codes.decode_parts(made, form.bits, value.dtype, form.of_roots)]

    groups = value.dim() - layout.static  # the dimension of groups, after those whose sizes change

    def joined(parts: Tensor) -> list[Tensor]:
        return [layout.join(parts.flatten(groups + 1), sizes)]

    if value.device.type == "cpu":
        return encode, decode, lambda parts: joined(_kept(parts, groups))
    return encode, lambda *encoded: joined(*decode(*encoded)), None


def _kept(parts: Tensor, groups: int) -> Tensor:
    """The parts, written to memory as they are: not all loops that read them are those of their shape.

    Dimensions whose sizes change become one, since older releases of PyTorch order strides as plain numbers only. Bools
    are written as bytes: on a CPU, writing bools takes twenty times as long.
    """
    lead = parts.shape[: groups + 1]
    flat = parts.flatten(0, groups)
    if parts.dtype == torch.bool:
        return (private.in_memory(flat.to(torch.uint8)).to(torch.int32) != 0).unflatten(0, lead)
    return private.in_memory(flat).unflatten(0, lead)


def _opaque(dtype: torch.dtype, form: Groups, rounding: str, sizes: list[int]) -> tuple[Function, Function]:
    """How to encode and decode by our own kernels."""

    def encode(x: Tensor) -> list[Tensor]:
        noise = private.uniform(x) if rounding == "stochastic" else None
        return opaque.encode(x.float().sqrt() if form.of_roots else x, form.layout, form.bits, noise)

    def decode(minimum: Tensor, step: Tensor, planes: Tensor) -> list[Tensor]:
        if not form.of_roots:
            return [opaque.decode(minimum, step, planes, form.layout, sizes, dtype)]
        roots = opaque.decode(minimum, step, planes, form.layout, sizes, torch.float32)
        return [(roots * roots).to(dtype)]  # as `codes` does: a square doubles the error of a rounded root

    return encode, decode


def _is_written_first(x: Tensor) -> bool:
    """Whether x, and the minimum and step of each group, are written to memory before they are read: on a CPU.

    If x were computed in the loops that encode it, Inductor's C++ would load values of its row, such as a mean, number
    by number. Not where sizes change: older releases of PyTorch order strides as plain numbers only.
    """
    return x.device.type == "cpu" and not any(isinstance(size, SymInt) for size in (*x.shape, *x.stride()))


def after_last_use(node: fx.Node) -> fx.Node:
    """The operation right after the node's last use, apart from the output."""
    order = {operation: place for place, operation in enumerate(node.graph.nodes)}
    last = max((user for user in node.users if user.op != "output"), key=order.__getitem__, default=node)
    following = last.next
    while following.op == "placeholder":
        following = following.next
    return following
