"""Codes in the graphs of a block that run operation by operation: each is one call, without PyTorch's dispatcher."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from operator import getitem
from typing import Any, TypeAlias

import torch
from torch import SymInt, Tensor, fx

from actfit.kernels.compression.cut import Cut
from actfit.kernels.compression.decoding import move_results
from actfit.kernels.compression.forms import Bits, FixedRange, Groups
from actfit.kernels.compression.nodes import is_mutable, origin
from actfit.kernels.compression.splice import after_last_use, let_cross
from actfit.kernels.engine import dense, host, ops
from actfit.kernels.engine.planes import plane_bytes
from actfit.kernels.methods.approximate_activations import shrinkage, step
from actfit.kernels.private import is_fake

# Sizes; or where these change, a tensor without elements that has one dimension more.
Shape: TypeAlias = Sequence[int] | Tensor


def encode(
    x: Tensor, order: Sequence[int], group: int, bits: int, stochastic: bool, of_roots: bool, carries: bool
) -> tuple[Tensor, ...]:
    """Planes, minima and scales of a tensor whose dimensions are in `order` by descending stride.

    Parameters
    ----------
    of_roots
        Whether to encode the roots of x, in float32, as a square doubles the error of a rounded root.
    carries
        Whether a tensor without elements that has the sizes of x comes last; backward needs them where they change.
    """
    flat = flat_of(x.float().sqrt() if of_roots else x, order)
    noise = _uniform(flat) if stochastic else None
    return (*dense.encode(flat, noise, group, bits), *_carrier(x, carries))


def _uniform(x: Tensor) -> Tensor:
    """Numbers from [0, 1), drawn apart from PyTorch's own, of which dropout gets the same as without codes."""
    if is_fake(x):
        return torch.rand(x.shape, dtype=torch.float32, device=x.device)
    return torch.rand(x.shape, dtype=torch.float32, device=x.device, generator=_drawing(x.device, torch.initial_seed()))


@lru_cache(maxsize=64)
def _drawing(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def decode(
    planes: Tensor,
    minimum: Tensor,
    scale: Tensor,
    shape: Shape,
    order: Sequence[int],
    group: int,
    dtype: torch.dtype,
    of_roots: bool,
) -> Tensor:
    """The tensor of `encode`."""
    sizes = shape.shape[:-1] if isinstance(shape, Tensor) else shape
    flat = dense.decode(planes, minimum, scale, group, prod(sizes), torch.float32 if of_roots else dtype)
    return _shaped(flat.square_().to(dtype) if of_roots else flat, sizes, order)


def encode_normalized(
    x: Tensor, normed: Sequence[Tensor], order: Sequence[int], bits: int, carries: bool
) -> tuple[Tensor, ...]:
    """Planes, minima and scales by channels of what a batch norm with the results `normed` normalises."""
    flat, mean, inverse = flat_of(x, order), normed[1], normed[2]
    scale = step(bits) / shrinkage(bits) / inverse
    minimum = mean + scale * (0.5 - 2 ** (bits - 1))
    if is_fake(x):
        planes = x.new_empty((bits, plane_bytes(flat.numel())), dtype=torch.uint8)
    else:
        offset = torch.full_like(mean, 2 ** (bits - 1))
        planes = ops.encode(flat, mean, inverse / step(bits), offset, None, _channel(x.shape, order), bits)
    return planes, minimum, scale, *_carrier(x, carries)


def decode_normalized(
    planes: Tensor, minimum: Tensor, scale: Tensor, shape: Shape, order: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """The tensor of `encode_normalized`."""
    sizes = shape.shape[:-1] if isinstance(shape, Tensor) else shape
    decode_groups = torch.ops.actfit.decode_groups if is_fake(planes) else ops.decode_groups
    flat = decode_groups(planes, minimum, scale, _channel(sizes, order), prod(sizes), dtype, ())
    return _shaped(flat, sizes, order)


def _channel(sizes: Sequence[int], order: Sequence[int]) -> int:
    """How many elements of a channel, the second dimension, are neighbours in memory."""
    return prod(sizes[dim] for dim in order[order.index(1) + 1 :])


def pack(x: Tensor, order: Sequence[int], carries: bool) -> tuple[Tensor, ...]:
    """Bools, a bit each, uint8 [bytes]; `carries` as in `encode`."""
    flat = flat_of(x, order)
    if is_fake(x):
        return x.new_empty(plane_bytes(flat.numel()), dtype=torch.uint8), *_carrier(x, carries)
    return host.pack(flat, 1)[0], *_carrier(x, carries)


def unpack(packed: Tensor, shape: Shape, order: Sequence[int]) -> Tensor:
    """The tensor of `pack`."""
    sizes = shape.shape[:-1] if isinstance(shape, Tensor) else shape
    if is_fake(packed):
        return _shaped(packed.new_empty(prod(sizes), dtype=torch.bool), sizes, order)
    return _shaped(host.unpack(packed[None], prod(sizes)).view(torch.bool), sizes, order)


def _carrier(x: Tensor, carries: bool) -> list[Tensor]:
    return [x.new_empty((*x.shape, 0))] if carries else []


def flat_of(x: Tensor, order: Sequence[int]) -> Tensor:
    """A dense tensor as it lies in memory."""
    return (x if _is_ascending(order) else x.permute(*order)).reshape(-1)


def _shaped(flat: Tensor, sizes: Sequence[int], order: Sequence[int]) -> Tensor:
    if _is_ascending(order):
        return flat.view(sizes)
    back = [order.index(dim) for dim in range(len(order))]
    return flat.view([sizes[dim] for dim in order]).permute(back)


def _is_ascending(order: Sequence[int]) -> bool:
    return list(order) == sorted(order)


def put_codes(forward: fx.GraphModule, backward: fx.GraphModule, cut: Cut, rounding: str) -> None:
    """Encode after the last use in forward, and decode once in backward, right before the first use."""
    crossing: list[fx.Node] = []
    coded = cut.coded
    if not any(is_mutable(node) for node in backward.graph.nodes):
        move_results(backward.graph, {})
    for node, placeholder in cut.pairs.items():
        if node not in coded:
            crossing.append(node)
            continue
        form, carries = coded[node], any(isinstance(size, SymInt) for size in node.meta["val"].shape)
        order = form.layout.order
        if isinstance(form, Bits):
            sent = _sent(forward.graph, node, pack, (order, carries))
        elif isinstance(form, FixedRange):
            sent = _sent(forward.graph, node, encode_normalized, (form.norm, order, form.bits, carries))
        else:
            options = (order, form.layout.group, form.bits, rounding == "stochastic", form.of_roots, carries)
            sent = _sent(forward.graph, node, encode, options)
        crossing += sent
        _receive(backward.graph, placeholder, sent, node, form, carries)
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
    for made in forward.graph.find_nodes(op="call_function", target=encode):
        if made.args[0] in cut.sites:
            made.target = encoding(cut.sites[made.args[0]])
    for made in backward.graph.find_nodes(op="call_function", target=decode):
        made.target = decoding


def _sent(graph: fx.Graph, node: fx.Node, function: Callable[..., Any], options: Sequence[Any]) -> list[fx.Node]:
    """Encode a node; the results that cross."""
    with graph.inserting_before(after_last_use(node)):
        made = graph.call_function(function, (node, *options))
        results = _fake(function, node.meta["val"], options)
        sent = [graph.call_function(getitem, (made, place)) for place in range(len(results))]
    made.meta = {**origin(node), "val": results}
    for node_of_result, result in zip(sent, results, strict=True):
        node_of_result.meta = {**origin(node), "val": result}
    return sent


def _fake(function: Callable[..., Any], value: Tensor, options: Sequence[Any]) -> tuple[Tensor, ...]:
    """The results' metadata: sizes and types, on fake tensors."""
    count = value.numel()
    planes = plane_bytes(count)
    carrier = _carrier(value, options[-1])
    if function is pack:
        return value.new_empty(planes, dtype=torch.uint8), *carrier
    if function is encode_normalized:
        norm, _, bits, _ = options
        ends = [norm.meta["val"][1].new_empty(value.shape[1]) for _ in range(2)]
        return value.new_empty((bits, planes), dtype=torch.uint8), *ends, *carrier
    _, group, bits, *_ = options
    ends = [value.new_empty((count + group - 1) // group, dtype=torch.bfloat16) for _ in range(2)]
    return value.new_empty((bits, planes), dtype=torch.uint8), *ends, *carrier


def _receive(
    graph: fx.Graph, placeholder: fx.Node, sent: list[fx.Node], node: fx.Node, form: Bits | Groups, carries: bool
) -> None:
    """Replace a placeholder by those of its codes, decoded before the first use."""
    value, order = node.meta["val"], form.layout.order
    with graph.inserting_before(placeholder):
        received = [graph.placeholder(f"{placeholder.name}_code") for _ in sent]
    for code, taken in zip(sent, received, strict=True):
        taken.target = taken.name  # generated code takes it by its target, which nothing keeps unique
        taken.meta["val"] = code.meta["val"]
    if placeholder.users:
        places = {user: place for place, user in enumerate(graph.nodes)}
        first = min(placeholder.users, key=places.__getitem__)
        codes, shape = (received[:-1], received[-1]) if carries else (received, tuple(value.shape))
        with graph.inserting_before(first):
            if isinstance(form, Bits):
                decoded = graph.call_function(unpack, (*codes, shape, order))
            elif isinstance(form, FixedRange):
                decoded = graph.call_function(decode_normalized, (*codes, shape, order, value.dtype))
            else:
                options = (shape, order, form.layout.group, value.dtype, form.of_roots)
                decoded = graph.call_function(decode, (*codes, *options))
        decoded.meta = {"val": value}
        placeholder.replace_all_uses_with(decoded)
    graph.erase_node(placeholder)
