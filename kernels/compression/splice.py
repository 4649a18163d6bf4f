"""Codes, put between a forward graph and its backward graph."""

from collections.abc import Callable, Container, Sequence
from typing import Any

from torch import SymBool, SymFloat, SymInt, Tensor, fx

from kernels.compression import codes, private
from kernels.compression.attention import beside_a_log_sum_exp, compute_again
from kernels.compression.crossing import Crossing
from kernels.compression.decoding import Reader, decode_where_used
from kernels.compression.exact import move_to_forward
from kernels.compression.expected_error import expected_error
from kernels.compression.forms import (
    MOST,
    Again,
    Bits,
    Form,
    Groups,
    Settings,
    Whole,
    bytes_of,
    coded_bytes,
    form_of,
)
from kernels.compression.inlining import inline
from kernels.compression.nodes import origin
from kernels.compression.places import hint
from kernels.engine.elements import dtype_name

Graphs = tuple[fx.GraphModule, fx.GraphModule]
Traced = dict[tuple[str, Bits | Groups], Graphs]


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
    pairs = _pairs(last.args[0][outputs:], backward.graph)
    inputs = _inputs_without_gradient(forward.graph, backward.graph, static)
    exact = move_to_forward(forward.graph, backward.graph, pairs, set(_coded(_forms(pairs, inputs, settings))))
    pairs = compute_again(backward.graph, exact, set(_coded(_forms(exact, inputs, settings))))
    forms = _forms(pairs, inputs, settings, beside_a_log_sum_exp(backward.graph, set(pairs.values())))
    coded = _coded(forms)
    crossing: list[fx.Node] = []
    readers: dict[fx.Node, Reader] = {}
    traced: Traced = {}
    for node, placeholder in pairs.items():
        if node in coded:
            graphs = _graphs(node.meta["val"], coded[node], settings, traced)
            made, readers[placeholder] = _code(forward, backward, node, placeholder, graphs)
            crossing += made
        else:
            crossing.append(node)
    decode_where_used(backward.graph, readers, set(pairs.values()))
    last.args = ((*last.args[0][:outputs], *crossing),)
    for module in (forward, backward):
        module.graph.lint()
        module.recompile()
    again = {node: Again() for node in exact if node not in pairs}
    return [_row(node, form, settings) for node, form in (forms | again).items()]


def _pairs(saved: Sequence[fx.Node], backward: fx.Graph) -> dict[fx.Node, fx.Node]:
    """What crosses, and the placeholders of the backward graph, which begin with the sizes that forward ends with.

    Their names may differ, as in checkpointed regions.
    """
    sizes = [node for node in saved if isinstance(node.meta.get("val"), SymInt | SymFloat | SymBool)]
    others = [node for node in saved if node not in sizes]
    placeholders = backward.find_nodes(op="placeholder")
    matching = dict(zip([*sizes, *others], placeholders, strict=False))
    return {node: matching[node] for node in saved}


def _forms(
    pairs: dict[fx.Node, fx.Node], inputs: set[fx.Node], settings: Settings, fine: Container[fx.Node] = ()
) -> dict[fx.Node, Form]:
    """The forms of the tensors that cross, with the finest codes at placeholders in `fine`; none of others' inputs."""
    tensors = [node for node in pairs if node not in inputs and isinstance(node.meta.get("val"), Tensor)]
    bits = {node: MOST if pairs[node] in fine else settings.bits for node in tensors}
    return {node: form_of(node, pairs[node], bits[node]) for node in tensors}


def _coded(forms: dict[fx.Node, Form]) -> dict[fx.Node, Bits | Groups]:
    return {node: form for node, form in forms.items() if isinstance(form, Bits | Groups)}


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


def _row(node: fx.Node, form: Form, settings: Settings) -> Crossing:
    value: Tensor = node.meta["val"]
    stack = list(node.meta.get("nn_module_stack", {}).values())
    operation = "an input" if node.op == "placeholder" else node.meta.get("original_aten", node.target)
    if isinstance(form, Whole):
        text, reason = "whole", form.reason
    elif isinstance(form, Groups):
        text, reason = f"{form.bits} bits", ""
    else:
        text, reason = "1 bit" if isinstance(form, Bits) else "computed again", ""
    return Crossing(
        private.module_name(stack[-1][0]) if stack else "",
        str(operation).removesuffix(".default"),
        tuple(hint(length) for length in value.shape),
        dtype_name(value.dtype),
        text,
        reason,
        bytes_of(value),
        coded_bytes(value, form),
        expected_error(form.bits, form.places.group, settings.rounding) if isinstance(form, Groups) else 0.0,
    )


def _code(
    forward: fx.GraphModule, backward: fx.GraphModule, node: fx.Node, placeholder: fx.Node, graphs: Graphs
) -> tuple[list[fx.Node], Reader]:
    """What crosses in the stead of a node, encoded after its last use, and how the placeholder is decoded.

    To encode at once would save no less, and Inductor may fuse the code with the last use.
    """
    encoding, decoding = graphs
    names = [f"{node.name}_{part}" for part in ("minimum", "step", "field", "field2", "field3")]
    made = inline(forward.graph, encoding, [node], _after_last_use(node), names)
    with backward.graph.inserting_before(placeholder):
        crossing = [backward.graph.placeholder(one.name) for one in made]
    for sent, received in zip(made, crossing, strict=True):
        sent.meta = {**origin(node), **sent.meta}
        received.meta["val"] = sent.meta["val"]
    return made, Reader(crossing, decoding)


def _graphs(value: Tensor, form: Bits | Groups, settings: Settings, traced: Traced) -> Graphs:
    """Encode and decode as graphs; tensors that are alike share them, for tracing takes longer than all else here."""
    key = (str((value.shape, value.stride(), value.dtype, value.device)), form)
    if key not in traced:
        encode, decode = _functions(value, form, settings)
        encoding = private.trace(encode, value)
        (output,) = encoding.graph.find_nodes(op="output")
        traced[key] = encoding, private.trace(decode, *(one.meta["val"] for one in output.args[0]))
    return traced[key]


def _functions(value: Tensor, form: Bits | Groups, settings: Settings) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Encode and decode, from a list of tensors to a list of tensors."""
    places = form.places
    sizes = [value.shape[dim] for dim in places.order[value.dim() - places.static :]]

    def encode(x: Tensor) -> list[Tensor]:
        if isinstance(form, Bits):
            return [codes.encode_bits(places.split(x))]
        written = _is_written_first(x)
        groups = places.split(private.in_memory(x) if written else x)
        noise = private.uniform(groups) if settings.rounding == "stochastic" else None
        minimum, step, fields = codes.encode(groups, form.bits, noise, written)
        return [minimum, step, *fields]

    def decode(*parts: Tensor) -> list[Tensor]:
        if isinstance(form, Bits):
            return [places.join(codes.decode_bits(parts[0]), sizes)]
        whole = codes.Codes(parts[0], parts[1], parts[2:])
        return [places.join(codes.decode(whole, form.bits, value.dtype), sizes)]

    return encode, decode


def _is_written_first(x: Tensor) -> bool:
    """Whether x, and what codes need of each group, is written to memory before it is read: on a CPU.

    Were x computed in the loops that encode it, Inductor's C++ would take what x has from its row, such as a mean,
    number by number. Not where sizes change: older releases of PyTorch order strides as plain numbers only.
    """
    return x.device.type == "cpu" and not any(isinstance(size, SymInt) for size in (*x.shape, *x.stride()))


def _after_last_use(node: fx.Node) -> fx.Node:
    """The operation before which nothing uses the node any more, but for the output."""
    order = {one: place for place, one in enumerate(node.graph.nodes)}
    last = max((user for user in node.users if user.op != "output"), key=order.__getitem__, default=node)
    following = last.next
    while following.op == "placeholder":
        following = following.next
    return following
