"""Views with gaps cross as the tensor that they are views of.

Query, key and value of one product are parts of its rows. PyTorch may save each by itself: together they hold that
tensor, and none of them is dense, so that none has groups. So the tensor crosses, and backward takes views of it.
"""

import operator

from torch import Tensor, fx

from actfit.kernels.compression.forms import bytes_of
from actfit.kernels.compression.layout import order_of
from actfit.kernels.compression.nodes import origin

ENOUGH = 2  # times: the bytes of a tensor over those of its views that cross, at most; a few rows cross by themselves


def cross_bases(backward: fx.Graph, pairs: dict[fx.Node, fx.Node]) -> dict[fx.Node, fx.Node]:
    """Let tensors cross in place of their views with gaps; `pairs` are as in `exact.move_to_forward`.

    Returns
    -------
    The new pairs: a tensor is where the first of its views was. The output of the forward graph is not changed yet.
    """
    base_of = {node: base for node in pairs if (base := _base(node))}
    for base in set(base_of.values()):
        views = [view for view in base_of if base_of[view] is base]
        if ENOUGH * sum(bytes_of(view.meta["val"]) for view in views) < bytes_of(base.meta["val"]):
            base_of = {view: other for view, other in base_of.items() if other is not base}
    together: dict[fx.Node, fx.Node] = {}
    for node, placeholder in pairs.items():
        base = base_of.get(node, node)
        if base in pairs:
            together |= {node: placeholder} if base is node else {}
        elif base not in together:
            base.meta |= {
                name: value for name, value in origin(node).items() if name == "saved_tensor_with_no_vc_check"
            }
            with backward.inserting_before(placeholder):
                together[base] = backward.placeholder(base.name)
            together[base].meta["val"] = base.meta["val"]
    _take_views(backward, base_of, together | pairs)
    return together


def _base(node: fx.Node) -> fx.Node | None:
    """The dense tensor that a tensor with gaps is a view of; None for others."""
    if not isinstance(node.meta.get("val"), Tensor) or _is_dense(node):
        return None
    while not _is_dense(node):
        is_view = getattr(node.target, "is_view", False) or node.target is operator.getitem
        if not is_view or len(node.all_input_nodes) != 1:  # a size that changes is another input
            return None
        (node,) = node.all_input_nodes
    return node


def _is_dense(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and order_of(value) is not None


def _take_views(backward: fx.Graph, base_of: dict[fx.Node, fx.Node], placeholders: dict[fx.Node, fx.Node]) -> None:
    """Replace the views' placeholders by views of their bases' placeholders."""
    last = backward.find_nodes(op="placeholder")[-1]
    copies = {base: placeholders[base] for base in base_of.values()}
    for view in base_of:
        chain = [view]
        while chain[-1] not in copies:
            chain += chain[-1].all_input_nodes
        for node in reversed(chain[:-1]):
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), copies.__getitem__)
            with backward.inserting_after(last):
                # Names tell nodes of both graphs apart, see `exact.move_to_forward`.
                last = backward.create_node(node.op, node.target, args, kwargs, f"{node.name}_of_base")
            last.meta, copies[node] = dict(node.meta), last
        placeholders[view].replace_all_uses_with(copies[view])
        backward.erase_node(placeholders[view])
