"""Blocks whose backward pass runs forward again, as a checkpoint does: from what the block is given.

That is part of the backward graph, so forward runs again only up to what backward reads.
"""

import operator
from collections.abc import Callable, Iterable, Mapping

from torch import Tensor, fx

from actfit.kernels.compression.cut import Cut, by_method, inputs_without_gradient, pairs_of, save
from actfit.kernels.compression.forms import MAX_BITS, Form, Groups, Whole, form_of
from actfit.kernels.compression.nodes import is_drawn, is_product, is_size, walk_back
from actfit.kernels.graph.dropout import dropped_again, is_dropped, mask_of
from actfit.kernels.methods.every_tensor import EveryTensor


def run_again(
    forward: fx.GraphModule, backward: fx.GraphModule, outputs: int, is_dear: Callable[[fx.Node], bool]
) -> None:
    """Let backward compute what forward saves for it, from the inputs of forward.

    What is drawn at random, or may change something else, is computed once: its results are saved, but for what
    dropout gives, which follows from its mask.

    Parameters
    ----------
    outputs
        The number of the forward graph's own outputs, which precede those for backward.
    is_dear
        Whether backward must not compute an operation again; products may be dear, and run again all the same.
    """
    pairs = pairs_of(forward.graph, backward.graph, outputs)
    kept, inside = _needed(pairs, lambda node: is_dear(node) and (is_drawn(node) or not is_product(node)))
    first = next(iter(backward.graph.nodes))
    copies: dict[fx.Node, fx.Node] = {}
    with backward.graph.inserting_before(first):
        for node in sorted(kept, key=is_size, reverse=True):
            copies[node] = backward.graph.placeholder(f"{node.name}_kept")
            copies[node].meta = dict(node.meta)
    start = next(node for node in backward.graph.nodes if node.op != "placeholder")
    with backward.graph.inserting_before(start):
        for node in inside:
            if node.op == "get_attr":
                setattr(backward, str(node.target), getattr(forward, str(node.target)))
            copies[node] = _copied(backward.graph, node, copies)
    for node, placeholder in pairs.items():
        placeholder.replace_all_uses_with(copies[node])
        backward.graph.erase_node(placeholder)
    save(forward.graph, outputs, sorted(kept, key=is_size))


def _needed(saved: Iterable[fx.Node], is_once: Callable[[fx.Node], bool]) -> tuple[list[fx.Node], list[fx.Node]]:
    """What is saved to compute `saved` from, and what is computed."""

    def is_kept(node: fx.Node) -> bool:
        source = node.args[0] if node.target is operator.getitem else node
        return not is_dropped(node) and (node.op == "placeholder" or is_once(source))

    def given_to(node: fx.Node) -> list[fx.Node]:
        return [node.args[0].args[0], mask_of(node)] if is_dropped(node) else node.all_input_nodes

    return walk_back(saved, is_kept, given_to)


def _copied(graph: fx.Graph, node: fx.Node, copies: Mapping[fx.Node, fx.Node]) -> fx.Node:
    if is_dropped(node):
        return dropped_again(graph, node, copies[node.args[0].args[0]], copies[mask_of(node)])
    return graph.node_copy(node, copies.__getitem__)


def cut_again(
    forward: fx.Graph, backward: fx.Graph, outputs: int, static: frozenset[int], method: EveryTensor, smallest: int
) -> Cut:
    """As `cut_of`: what the block is given has codes, as it would have if it were rounded before.

    But not parameters, and what has no gradient: those are held elsewhere.
    """
    pairs, forms, sites = pairs_of(forward, backward, outputs), dict[fx.Node, Form](), dict[fx.Node, str]()
    held = inputs_without_gradient(forward, backward, static)
    for node in pairs:
        if node in held or not isinstance(node.meta.get("val"), Tensor):
            continue
        form = form_of(node, pairs[node], MAX_BITS, smallest)
        if isinstance(form, Groups) and node.op != "placeholder":
            form = Whole("computed once")
        elif isinstance(form, Groups):
            sites[node] = ": its input" + f" {len(sites) + 1}" * bool(sites)
            form = by_method(form, method, sites[node])
        forms[node] = form
    return Cut(outputs, pairs, forms, sites)
