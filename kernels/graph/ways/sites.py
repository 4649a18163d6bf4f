"""Finds activations in a joint graph: by their derivatives, and by the values that both compute."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import product
from operator import getitem

import torch
from torch import Tensor, fx

from actfit.kernels import private
from actfit.kernels.compression.layout import hint, order_of
from actfit.kernels.compression.nodes import is_pointwise, is_tangent, is_view, packet_of, walk_back
from actfit.kernels.engine.elements import DTYPES
from actfit.kernels.generated.functions import FUNCTIONS
from actfit.kernels.graph.ways.way import Site
from actfit.kernels.stock import STOCK

aten = torch.ops.aten
# Operations that only derivatives have, and the place of the argument that they are computed from: x or y.
DERIVATIVES = {
    **dict.fromkeys((aten.gelu_backward, aten.silu_backward, aten.mish_backward, aten.hardswish_backward), 1),
    **dict.fromkeys((aten.softplus_backward, aten.log_sigmoid_backward, aten.tanh_backward, aten.sigmoid_backward), 1),
    aten.elu_backward: 5,
}
ELEMENTWISE = {*DERIVATIVES, aten.log_sigmoid_forward, aten.hardswish, aten.detach}  # beside those with a tag
STEPS = 12  # operations of an activation that is written in several, as transformers' NewGELU, at most
# Formulas in models have constants of some seven digits; functions differ by far more.
TOLERANCE = 2.0**-20

Nodes = set[fx.Node]


class _Other(Exception):
    """What a node computes is no function of the tensors that are known."""


def sites_of(graph: fx.Graph, outputs: int, is_dear: Callable[[fx.Node], bool]) -> Iterator[Site | fx.Node]:
    """The activations of a joint graph, each with its derivative.

    Of one that is not in the catalogue, or has other parameters than there, its derivative alone.

    The graph may be changed at a site before the next one is asked for.

    Parameters
    ----------
    outputs
        The number of results of forward; gradients follow.
    is_dear
        Whether backward does not compute a node again.
    """
    for derivative in [node for node in graph.nodes if packet_of(node) in DERIVATIVES]:
        backward = _backward(graph)
        if derivative not in backward:  # a part of a derivative that is replaced already
            continue
        with private.unset_fake_temporarily():  # values are real
            match = _match(derivative, backward)
        if match is None:
            yield derivative
            continue
        name, (x, y, grad_y, grad_x), inside = match
        (last,) = graph.find_nodes(op="output")
        returned = set(last.args[0][:outputs])
        x_kept, y_kept = (_is_kept(tensor, inside, backward, returned, is_dear) for tensor in (_base(x), y))
        yield Site(name, x, y, grad_y, grad_x, inside, _read(derivative) is y, x_kept, y_kept)


def _backward(graph: fx.Graph) -> Nodes:
    """The nodes that depend on gradients."""
    backward: Nodes = set()
    for node in graph.nodes:
        if is_tangent(node) or (node.op == "call_function" and not backward.isdisjoint(node.all_input_nodes)):
            backward.add(node)
    return backward


def _read(derivative: fx.Node) -> fx.Node:
    """The x or y that a derivative is computed from."""
    read = derivative.args[DERIVATIVES[packet_of(derivative)]]
    while packet_of(read) is aten.detach:
        read = read.args[0]
    return read


def _match(
    derivative: fx.Node, backward: Nodes
) -> tuple[str, tuple[fx.Node, fx.Node, fx.Node, fx.Node], frozenset[fx.Node]] | None:
    """The largest activation whose derivative contains this one: its name, its tensors, and its operations."""
    read = _read(derivative)
    ends = [node for node in _after(read) if node not in backward and packet_of(node) is not aten.detach]
    grads_x = [node for node in _after(derivative) if node in backward]
    grads_y = [node for node in _before(derivative.args[0]) if node in backward]
    for x in _before(read):
        values = {x: _points()}
        for y in ends:
            if x is y or not _alike(x, y, strides=False) or (value := _value(y, values)) is None:
                continue
            for name in (name for name in FUNCTIONS if _close(value, _curve(name)[0])):
                expected = _curve(name)[1] * _scales()
                for grad_x, grad_y in product(grads_x, grads_y):
                    if not _alike(y, grad_x) or not _alike(y, grad_y, strides=False):
                        continue
                    made = _value(grad_x, {x: _points(), grad_y: _scales()})
                    if _close(made, expected):
                        _, of_y = walk_back([y], {x}.__contains__)
                        _, of_grad_x = walk_back([grad_x], {x, grad_y}.__contains__)
                        return name, (x, y, grad_y, grad_x), frozenset([*of_y, *of_grad_x])
    return None


def _before(node: fx.Node) -> list[fx.Node]:
    """The node and what it is made of element by element, the farthest first."""
    return _chain(node, lambda made: made.all_input_nodes if _is_elementwise(made) else [])


def _after(node: fx.Node) -> list[fx.Node]:
    """The node and what is made of it element by element, the farthest first."""
    return _chain(node, lambda made: filter(_is_elementwise, made.users))


def _chain(node: fx.Node, following: Callable[[fx.Node], Iterable[fx.Node]]) -> list[fx.Node]:
    nodes = [node]
    for made in nodes:
        if len(nodes) < STEPS:
            nodes += [other for other in following(made) if other not in nodes]
    return nodes[::-1]


def _is_elementwise(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    return is_pointwise(node) or packet_of(node) in ELEMENTWISE or node.target is getitem


def _value(node: fx.Node, known: dict[fx.Node, Tensor]) -> Tensor | None:
    """What a node computes of known values; None if it takes others, or does not work element by element."""

    def compute(node: fx.Node) -> Tensor:
        if node not in known:
            if not _is_elementwise(node) or len(known) > 4 * STEPS:
                raise _Other
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), compute)
            known[node] = node.target(*args, **kwargs)
        return known[node]

    with torch.no_grad():
        try:
            return compute(node)
        except (_Other, RuntimeError, TypeError):  # an operation may refuse such tensors
            return None


def _alike(first: fx.Node, second: fx.Node, strides: bool = True) -> bool:
    """Whether both are tensors of one dtype and size; with strides: dense, with the same layout in memory."""
    a, b = first.meta.get("val"), second.meta.get("val")
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or a.dtype != b.dtype or a.dtype not in DTYPES:
        return False
    if list(map(hint, a.shape)) != list(map(hint, b.shape)):
        return False
    return not strides or (order_of(a) is not None and order_of(a) == order_of(b))


def _base(x: fx.Node) -> fx.Node:
    """What a tensor is a view of, as half of a product: what is saved of it is saved whole."""
    while is_view(x) or (x.target is getitem and is_view(x.args[0])):
        x = x.args[0]
    return x


def _is_kept(
    tensor: fx.Node, inside: frozenset[fx.Node], backward: Nodes, returned: Nodes, is_dear: Callable[[fx.Node], bool]
) -> bool:
    """Whether backward reads the tensor, or what is cheaply made of it, besides f'; or forward returns it."""
    todo, seen = [(tensor, True)], {tensor}
    while todo:
        node, is_itself = todo.pop()
        if is_itself and node in returned:
            return True
        for user in node.users:
            if user in inside or user in seen:
                continue
            if user in backward:
                return True
            if user.op == "call_function" and not is_dear(user):
                todo.append((user, is_itself and is_view(user)))
                seen.add(user)
    return False


@cache
def _points() -> Tensor:
    # Not at round numbers, where functions have kinks; also far out, where some are clipped.
    near = torch.linspace(-12.0 + 1e-3 / 3, 12.0, 769, dtype=torch.float64, device="cpu")
    far = torch.logspace(1.08, 2.6, 33, dtype=torch.float64, device="cpu")
    return torch.cat([near, far, -far])


@cache
def _scales() -> Tensor:
    return torch.where(torch.arange(len(_points()), device="cpu") % 3 > 0, 10.0, -7.0).double()


@cache
def _curve(name: str) -> tuple[Tensor, Tensor]:
    """f and f' of a function of the catalogue with its default parameters."""
    with torch.enable_grad():
        x = _points().clone().requires_grad_()
        y = STOCK[name](x, *FUNCTIONS[name].parameters.values())
        (derivative,) = torch.autograd.grad(y.sum(), x)
    return y.detach(), derivative


def _close(values: object, expected: Tensor) -> bool:
    if not isinstance(values, Tensor) or values.shape != expected.shape:
        return False
    return bool(((values - expected).abs() <= TOLERANCE * (1 + expected.abs())).all())
