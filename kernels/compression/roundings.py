"""What a number is rounded from, or an index is computed from, crosses as it is.

A rounding jumps: beside the floor of an exact x, a decoded x is in another cell, and x - floor(x) is off by the code's
error, a large part of 1 where x is in the hundreds. So are coordinates of samples, whose corners an operation itself
finds. They are small beside what is sampled.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, fx

from actfit.kernels.compression.exact import JUMPS, is_step, without_gradients
from actfit.kernels.compression.nodes import (
    CAST,
    arguments_of,
    is_floating_point,
    is_pointwise,
    is_view,
    packet_of,
    walk_back,
)

aten = torch.ops.aten
COORDINATES = ("grid", "offset", "rois")  # arguments: of grid_sampler; of torchvision's deformable convolutions, pools
LIKE_POINTWISE = (CAST, aten.clone, aten._unsafe_view, aten.cat, aten.stack)


def rounded_from(backward: fx.Graph, pairs: dict[fx.Node, fx.Node]) -> set[fx.Node]:
    """The nodes among `pairs` that backward needs exactly for that reason; `pairs` are as in `exact.move_to_forward`.

    Not what only masks are computed from: these cross in a bit an element.
    """
    nodes = {placeholder: node for node, placeholder in pairs.items()}
    exact = {nodes[part] for part in _sources(without_gradients(backward, set(nodes)), set(nodes))}
    for node in backward.nodes:  # coordinates beside a gradient
        named = [value for name, value in arguments_of(node).items() if name in COORDINATES]
        exact |= {nodes[part] for value in named for part in _computed_from(value, set(nodes))}
    rounded = [node for node in pairs if _is_rounded(node)]
    # Both a number and its rounding may cross, which backward subtracts.
    return exact.union(rounded, *(_computed_from(node, set(pairs) - {node}) for node in rounded))


def _sources(nodes: Iterable[fx.Node], ends: set[fx.Node]) -> Iterator[fx.Node]:
    """Those of `ends` from which one of `nodes` is computed, element by element, and rounded."""
    for node in nodes:
        if _rounds(node) and not (node.users and all(map(_is_mask, node.users))):
            yield from _computed_from(node, ends)


def _rounds(node: fx.Node) -> bool:
    """Whether it maps floating-point numbers to others that jump, or to integers, one by one."""
    return is_step(node) and (packet_of(node) in JUMPS[3:] or (packet_of(node) is CAST and not _is_mask(node)))


def _is_mask(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dtype == torch.bool


def _is_rounded(node: fx.Node) -> bool:
    """Whether it is a rounding in floating point, or that and a number."""
    while _moves(node) and len(node.all_input_nodes) == 1 and not _rounds(node):
        node = node.all_input_nodes[0]
    return is_floating_point(node) and _rounds(node)


def _computed_from(node: object, ends: set[fx.Node]) -> list[fx.Node]:
    """Those of `ends` from which a node is computed by views and element by element."""
    nodes = [node] if isinstance(node, fx.Node) else []
    return walk_back(nodes, ends.__contains__, lambda part: part.all_input_nodes if _moves(part) else [])[0]


def _moves(node: fx.Node) -> bool:
    return is_view(node) or is_pointwise(node) or packet_of(node) in LIKE_POINTWISE
