"""The exact policy: cheap operations are computed again in backward, and bools are saved as one bit each.

Gradients stay the same bit for bit: an operation that is computed again has the same inputs.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from kernels.compression.crossing import Graph
from kernels.compression.cut import Cut, pairs_of, site_names
from kernels.compression.forms import SMALLEST, Bits, Form, Whole
from kernels.compression.layout import hint, layout_of
from kernels.compression.nodes import is_drawn, is_product
from kernels.compression.splice import crossings, put_codes
from kernels.graph import private

aten = torch.ops.aten
# As dear as products, or not the same each time: sums in an order that varies, sorting, scans.
DEAR = frozenset(
    [
        *(aten.sort, aten.topk, aten.cumsum, aten.cumprod, aten.logcumsumexp, aten.unique_consecutive, aten.nonzero),
        *(aten.scatter_add, aten.scatter_reduce, aten.index_add, aten.index_put, aten.linalg_inv_ex),
        aten.embedding,
    ]
)


class ExactPartitioner:
    """Cuts a joint graph so that backward computes cheap operations again.

    Attributes
    ----------
    graphs
        What each graph saves, as far as it is known, in the order in which they were cut.
    """

    def __init__(self) -> None:
        self.graphs: list[Graph] = []

    def __call__(
        self, joint: fx.GraphModule, inputs: Sequence[object], **options: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The forward and the backward graph."""
        forward, backward = private.recompute_all_but(is_dear, joint, inputs, **options)
        outputs = options["num_fwd_outputs"]
        (last,) = forward.graph.find_nodes(op="output")
        pairs = pairs_of(last.args[0][outputs:], backward.graph)
        names = site_names(forward.graph)
        forms = {node: _form(node) for node in pairs if isinstance(node.meta.get("val"), Tensor)}
        cut = Cut(outputs, pairs, forms, {node: names[node] for node in forms})
        put_codes(forward, backward, cut, "nearest", direct=True)
        self.graphs.append(Graph(tuple(crossings(cut, "nearest"))))
        return forward, backward


def is_dear(node: fx.Node) -> bool:
    """Whether backward must not compute it again: a product, attention, a random draw, what is not PyTorch's own."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace not in ("aten", "prims"):
        return isinstance(node.target, torch._ops.HigherOrderOperator | torch._ops.OpOverload)
    return is_product(node) or is_drawn(node) or node.target.overloadpacket in DEAR


def _form(node: fx.Node) -> Form:
    value: Tensor = node.meta["val"]
    if value.dtype != torch.bool:
        return Whole("exact")
    if hint(value.numel()) < SMALLEST:
        return Whole(f"fewer than {SMALLEST} elements")
    layout = layout_of(value)
    return Whole(layout) if isinstance(layout, str) else Bits(layout)
