"""Where backward only multiplies a gradient by a function of a tensor, the factor crosses in place of the tensor.

That is so of an activation's input if nothing else needs it: the layer after it is frozen, as beside LoRA. What matters
is the error of f'(x). A code of x errs by a share of the range of x, times the slope of f'; a code of f'(x) by the same
share of the range of f'(x), which is less: where f' is steep, x has more of its range than f'(x) has of its own.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, fx

from actfit.kernels.compression.exact import without_gradients
from actfit.kernels.compression.nodes import CAST, is_drawn, is_pointwise, origin, packet_of

aten = torch.ops.aten
LIKE_VIEWS = (aten._unsafe_view, aten.clone, CAST)  # what computes nothing, besides views


@dataclass(frozen=True)
class Product:
    """The operations by which backward makes `end` of the gradient `start`: start times a function of a placeholder.

    own: operations on the placeholder alone, and constants; linear: those on the gradient.
    """

    start: fx.Node
    end: fx.Node
    own: list[fx.Node]
    linear: list[fx.Node]


def cross_factors(
    forward: fx.Graph, backward: fx.Graph, pairs: dict[fx.Node, fx.Node], coded: set[fx.Node]
) -> dict[fx.Node, fx.Node]:
    """Let factors of gradients cross in place of coded tensors that are needed for nothing else.

    `pairs`, `coded` and the returned pairs are as in `exact.move_to_forward`.
    """
    free = {*pairs.values(), *without_gradients(backward, set(pairs.values()))}
    together: dict[fx.Node, fx.Node] = {}
    for node, placeholder in pairs.items():
        has_groups = node in coded and node.meta["val"].is_floating_point()  # others cross exactly
        product = _product(backward, placeholder, free) if has_groups else None
        if product is None:
            together[node] = placeholder
            continue
        factor = _computed_in_forward(forward, node, placeholder, product)
        with backward.inserting_before(placeholder):
            together[factor] = backward.placeholder(f"{product.end.name}_factor")
        together[factor].meta["val"] = factor.meta["val"]
        _multiply(backward, product, together[factor])
        for done in [*reversed(product.linear), *reversed(product.own), placeholder]:
            if not done.users:  # constants may have others
                backward.erase_node(done)
    return together


def _product(backward: fx.Graph, placeholder: fx.Node, free: set[fx.Node]) -> Product | None:
    """The product that uses a placeholder, if there is one, and nothing else does."""
    own, linear = [placeholder], list[fx.Node]()
    inner, waiting = {placeholder}, {placeholder}  # of the product so far; those with a user that is not
    constants = {node for node in backward.nodes if packet_of(node) is aten.full}
    for node in backward.nodes:
        inputs = node.all_input_nodes
        if inner.isdisjoint(inputs):
            continue
        if constants.union(inner.intersection(own)).issuperset(inputs) and _is_element_wise(node):
            own += [*(constant for constant in inputs if constant in constants.difference(own)), node]
        elif _is_linear(node, inner.intersection(own)):
            linear.append(node)
        else:
            return None
        inner.add(node)
        waiting = {part for part in (*waiting, node) if not inner.issuperset(part.users)}
        if linear and waiting == {node}:
            break
    else:
        return None
    computed = [part for part in own[1:] if part not in constants and not _moves(part)]
    start = _start(backward, own, linear) if computed else None
    return Product(start, node, own[1:], linear) if start and start not in free and _same_sizes(start, linear) else None


def _start(backward: fx.Graph, own: list[fx.Node], linear: list[fx.Node]) -> fx.Node | None:
    """The gradient that all `linear` operations are made of; those before the first of them are added to `linear`."""
    order = {node: place for place, node in enumerate(backward.nodes)}
    while len(starts := {given for node in linear for given in node.all_input_nodes} - {*own, *linear}) > 1:
        latest = max(starts, key=order.__getitem__)
        if not _is_linear(latest, set()) or not set(linear).issuperset(latest.users):
            return None
        linear.insert(0, latest)
    return next(iter(starts), None)


def _is_element_wise(node: fx.Node) -> bool:
    is_pure = node.op == "call_function" and not node.is_impure() and not is_drawn(node)
    return is_pure and (_moves(node) or is_pointwise(node))


def _moves(node: fx.Node) -> bool:
    return bool(getattr(node.target, "is_view", False)) or packet_of(node) in LIKE_VIEWS


def _is_linear(node: fx.Node, own: set[fx.Node]) -> bool:
    """Whether it is linear, element by element, in those of its arguments that are not `own` or numbers."""
    packet, args = packet_of(node), node.args
    gradients = [isinstance(argument, fx.Node) and argument not in own for argument in args]
    if packet is aten.mul:
        return sum(gradients) == 1
    if packet in (aten.add, aten.sub):
        return all(gradients)
    if packet is aten.where:
        return gradients == [False, True, True]
    if packet is aten.div:
        return gradients[0] and not isinstance(args[1], fx.Node)
    return packet in (aten.neg, CAST) and gradients[0]


def _same_sizes(start: fx.Node, linear: list[fx.Node]) -> bool:
    """Whether all have the same sizes, and these are numbers."""
    values = [node.meta.get("val") for node in (start, *linear)]
    shapes = [value.shape if isinstance(value, Tensor) else (None,) for value in values]
    return all(isinstance(size, int) for shape in shapes for size in shape) and len(set(shapes)) == 1


def _computed_in_forward(forward: fx.Graph, node: fx.Node, placeholder: fx.Node, product: Product) -> fx.Node:
    """The product of ones, in the forward graph: after the last use of the tensor, which is not held longer."""
    names = {part.name for part in product.own}
    known = {part.name: part for part in forward.nodes if part.name in names and part.op != "output"}
    order = {part: place for place, part in enumerate(forward.nodes)}
    used = [node, *(user for user in node.users if user.op != "output"), *known.values()]
    before = max(used, key=order.__getitem__).next
    while before.op == "placeholder":
        before = before.next
    start: Tensor = product.start.meta["val"]
    with forward.inserting_before(before):
        settings = {"dtype": start.dtype, "layout": torch.strided, "device": start.device, "pin_memory": False}
        ones = forward.call_function(aten.full.default, (list(start.shape), 1), settings)
        ones.meta["val"] = start
        copies = {placeholder: node, product.start: ones}
        for part in (*product.own, *product.linear):
            copies[part] = known.get(part.name) or forward.node_copy(part, copies.__getitem__)
    factor = copies[product.end]
    factor.meta = {**factor.meta, **origin(node)}  # it is of the module of the tensor that it replaces
    return factor


def _multiply(backward: fx.Graph, product: Product, factor: fx.Node) -> None:
    """Replace a product by one multiplication."""
    with backward.inserting_after(product.end):
        result = backward.call_function(aten.mul.Tensor, (product.start, factor))
    result.meta = dict(product.end.meta)
    dtype = product.end.meta["val"].dtype
    if torch.promote_types(product.start.meta["val"].dtype, dtype) != dtype:
        result.meta["val"] = product.start.meta["val"] * factor.meta["val"]
        with backward.inserting_after(result):
            cast = backward.call_function(CAST.default, (result, dtype))
        cast.meta, result = dict(product.end.meta), cast
    product.end.replace_all_uses_with(result)
