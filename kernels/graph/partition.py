"""How the joint graph of a block is cut: what backward computes again, and what is saved, in what form."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from actfit.kernels import private
from actfit.kernels.compression import private as inductor
from actfit.kernels.compression.crossing import Graph, crossings
from actfit.kernels.compression.cut import Cut, cut_of, pairs_of, site_names
from actfit.kernels.compression.forms import SMALLEST, Bits, Form, Whole
from actfit.kernels.compression.layout import depends_on_data, layout_of
from actfit.kernels.compression.nodes import arguments_of, is_drawn, is_product, tensors_of
from actfit.kernels.graph.again import cut_again, run_again
from actfit.kernels.graph.copies import changed_inputs, return_own, save_copies, without_copies, without_detours
from actfit.kernels.graph.dropout import with_eager_dropout
from actfit.kernels.graph.norms import (
    on_fixed_range,
    with_exact_scales,
    with_exact_statistics,
    without_running_statistics,
)
from actfit.kernels.graph.private import recompute_all_but, save_all
from actfit.kernels.graph.results import share
from actfit.kernels.graph.splice import put_codes
from actfit.kernels.graph.watch import Watch
from actfit.kernels.graph.ways.apply import apply
from actfit.kernels.graph.ways.way import Way
from actfit.kernels.methods.every_tensor import EveryTensor

aten = torch.ops.aten
# As dear as products, or not the same each time: sums in an order that varies, sorting, scans, rows of large tables.
DEAR = frozenset(
    [
        *(aten.sort, aten.topk, aten.cumsum, aten.cumprod, aten.logcumsumexp, aten.unique_consecutive, aten.nonzero),
        *(aten.scatter_add, aten.scatter_reduce, aten.index_add, aten.index_put, aten.linalg_inv_ex),
        # Those that also change running statistics, and cannot do without.
        *(aten._batch_norm_with_update_functional, aten._batch_norm_with_update, aten.cudnn_batch_norm),
        *(aten.native_batch_norm, aten.miopen_batch_norm),
    ]
)


@dataclass(eq=False, repr=False)
class Partitioner:
    """Cuts a joint graph so that backward computes cheap operations again from as few saved bytes as possible.

    Products, attention, random draws and what is not PyTorch's own are computed once. Bools are saved as bits. An
    operation that is computed again has the same inputs and so the same result: that is exact. With a method, the
    tensors that are saved then are coded, too, but those that backward needs exactly.

    Attributes
    ----------
    graphs
        What each graph saves is added to these.
    method
        Bits and rounding of codes; None: exact.
    way
        What is saved of activations; None: what PyTorch's derivatives are computed from.
    refused
        With a way: activations that stay exact, and the reason, are added to these.
    watch
        With a plan: what is told of codes as they are made.
    compiles
        Whether the graphs are Inductor's: then PyTorch decides what backward computes again, as it knows what Inductor
        fuses, and may compute views and inputs of products, too.
    again
        Whether backward runs forward again, from what the block is given.
    shares
        Whether exact results that another block saves are recomputed, where they can be, from what this one saves.
    block
        The first module of those that share the graphs; "": the whole model.
    smallest
        The least number of elements of a tensor with codes.
    """

    graphs: list[Graph]
    method: EveryTensor | None = None
    way: Way | None = None
    refused: dict[str, str] = field(default_factory=dict)
    watch: Watch | None = None
    compiles: bool = False
    again: bool = False
    shares: bool = False
    block: str = field(default="", kw_only=True)
    smallest: int = field(default=SMALLEST, init=False)

    def __call__(
        self, joint: fx.GraphModule, inputs: Sequence[object], **options: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The forward and the backward graph."""
        outputs = options["num_fwd_outputs"]
        for node in joint.graph.nodes:  # of the last saved tensors PyTorch would not check whether they were changed
            node.meta.pop("saved_tensor_with_no_vc_check", None)
        if self.way is not None:
            self.refused |= apply(self.way, joint.graph, outputs, is_dear)
        if not self.compiles:
            without_copies(joint.graph)
            without_detours(joint.graph, outputs)
        changed = changed_inputs(joint.graph)
        dear = is_dear_or_counts if self.again and self.method is not None else is_dear
        divide = inductor.partition if self.compiles else partial(recompute_all_but, dear)
        if self.compiles:
            save_all([node for node in joint.graph.nodes if dear(node) and not is_dear(node)])
        forward, backward = divide(joint, inputs, **options)
        # PyTorch says nothing of the inputs of a nested_compile_region: what is around it holds them.
        within = range(len(forward.graph.find_nodes(op="placeholder"))) if not inputs else ()
        static = frozenset(within or options.get("static_lifetime_input_indices") or ())
        if self.again:
            run_again(forward, backward, outputs, dear)
        without_running_statistics(forward.graph, backward.graph, outputs)
        save_copies(forward.graph, backward.graph, outputs, changed)
        if self.method is None:
            cut = self._exact(forward.graph, backward.graph, outputs)
        elif self.again:
            cut = cut_again(forward.graph, backward.graph, outputs, static, self.method, self.smallest)
        else:
            cut = cut_of(forward.graph, backward.graph, outputs, static, self.method, self.smallest)
            cut = with_exact_statistics(forward.graph, backward.graph, cut)
            cut = with_exact_scales(forward.graph, backward.graph, cut)
            cut = on_fixed_range(cut) if self.method.on_fixed_range else cut
        if self.shares and self.method is None:
            share(forward, backward.graph, cut, static, is_dear)
        if not self.compiles:
            with_eager_dropout(forward.graph, backward.graph)  # once nothing asks any more which operations draw
        rounding = "nearest" if self.method is None else self.method.rounding
        self._write(forward, backward, cut, rounding)
        return_own(forward, outputs)
        self.graphs.append(Graph(tuple(crossings(cut, rounding)), self.block))
        return forward, backward

    def _write(self, forward: fx.GraphModule, backward: fx.GraphModule, cut: Cut, rounding: str) -> None:
        """Change both graphs."""
        put_codes(forward, backward, cut, rounding)
        if self.watch is not None:
            self.watch.put(forward, backward, cut)

    def _exact(self, forward: fx.Graph, backward: fx.Graph, outputs: int) -> Cut:
        pairs, names = pairs_of(forward, backward, outputs), site_names(forward)
        tensors = [node for node in pairs if isinstance(node.meta.get("val"), Tensor) and node.op != "placeholder"]
        forms = {node: self._form(node) for node in tensors}
        return Cut(outputs, pairs, forms, {node: names[node] for node in tensors})

    def _form(self, node: fx.Node) -> Form:
        value: Tensor = node.meta["val"]
        if value.dtype != torch.bool:
            return Whole("exact")
        if not depends_on_data(value) and value.numel() < self.smallest:  # a guard, if sizes change
            return Whole(f"fewer than {self.smallest} elements")
        layout = layout_of(value)
        return Whole(layout) if isinstance(layout, str) else Bits(layout)


def is_dear(node: fx.Node) -> bool:
    """Whether backward must not compute it again."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    if not isinstance(node.target, private.OpOverload):
        return isinstance(node.target, private.HigherOrderOperator)
    if node.target.namespace not in ("aten", "prims"):
        return True
    if is_product(node):  # within a checkpoint of the user's own it is computed again, as that says
        return is_drawn(node) or "recompute" not in node.meta
    if node.target is aten.embedding.default and not _is_table(arguments_of(node)["weight"]):
        return True
    return is_drawn(node) or node.target.overloadpacket in DEAR


def is_dear_or_counts(node: fx.Node) -> bool:
    """As `is_dear`; or whether it makes integers of other numbers: from decoded ones they would be others, far off."""
    if is_dear(node) or node.op != "call_function":
        return is_dear(node)
    made = tensors_of(node)
    counts = any(not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool) for x in made)
    return counts and any(x.is_floating_point() for given in node.all_input_nodes for x in tensors_of(given))


def _is_table(node: fx.Node) -> bool:
    """Whether it is an input that is only looked up: neither computed, nor changed in forward, as codebooks are."""
    others = [user for user in node.users if user.target is not aten.embedding.default and user.op != "output"]
    return node.op == "placeholder" and not others
