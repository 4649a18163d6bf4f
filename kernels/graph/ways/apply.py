"""Writes a way into a joint graph: forward saves what it keeps, and backward computes the gradient from that."""

from collections.abc import Callable
from operator import getitem

import torch
from torch import fx

import actfit.kernels.engine.ops  # noqa: F401 - registers the ops
from actfit.kernels.compression.cut import module_of, operation_of
from actfit.kernels.compression.layout import order_of
from actfit.kernels.compression.nodes import call, origin
from actfit.kernels.errors import KernelError
from actfit.kernels.graph.ways.sites import sites_of
from actfit.kernels.graph.ways.way import Site, Way
from actfit.kernels.methods.method import KernelSpec


def apply(way: Way, graph: fx.Graph, outputs: int, is_dear: Callable[[fx.Node], bool]) -> dict[str, str]:
    """Take the way at each activation of a joint graph that it serves.

    Returns
    -------
    dict[str, str]
        The others as "module: function", with the reason; they stay exact.
    """
    refused: dict[str, str] = {}
    for site in sites_of(graph, outputs, is_dear):
        if isinstance(site, fx.Node):
            name = operation_of(site).removeprefix("aten.").removesuffix("_backward")
            refused[f"{module_of(site)}: {name}"] = (
                "it is no function of the catalogue with its default parameters, or its gradient has another layout"
            )
            continue
        try:
            spec, numbers = way.kernel(site)
        except KernelError as error:
            refused[f"{module_of(site.y)}: {site.function}"] = str(error)
        else:
            _write(graph, site, spec, numbers)
    return refused


def _write(graph: fx.Graph, site: Site, spec: KernelSpec, numbers: list[float]) -> None:
    """One call of a kernel in forward, which is not run again in backward, and one in backward."""
    ops, order = torch.ops.actfit, list(order_of(site.y.meta["val"]) or ())
    back = [order.index(dim) for dim in range(len(order))]
    names = {**origin(site.y), "original_aten": f"{site.function} by {spec.method}"}
    with graph.inserting_before(site.y):
        both = call(graph, ops.forward.default, site.x, spec.key, numbers, order)
        values, saved = (call(graph, getitem, both, place) for place in range(2))
        y = call(graph, torch.ops.aten.permute.default, values, back)
    for node in (both, values, saved, y):
        node.meta.update(names)
    site.y.replace_all_uses_with(y)
    with graph.inserting_before(site.grad_x):
        grad = call(graph, torch.ops.aten.permute.default, site.grad_y, order)
        grad = call(graph, torch.ops.aten.contiguous.default, grad)
        read = values if spec.storage.keeps_output else None
        made = call(graph, ops.backward.default, grad, read, saved, spec.key, numbers)
        grad_x = call(graph, torch.ops.aten.permute.default, made, back)
    for node in (grad, made, grad_x):
        node.meta.update(origin(site.grad_x))
    site.grad_x.replace_all_uses_with(grad_x)
    for node in reversed(list(graph.nodes)):
        if node in site.inside and not node.users:
            graph.erase_node(node)
