"""Bytes of graphs that Inductor compiles: it computes element-wise operations in the loop that reads their result.

So a step on fake tensors counts the bytes that compiled code takes. What Inductor fuses beyond that is not foreseen:
the count is rather too high than too low.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from actfit.kernels.compression.nodes import cone, is_pointwise, is_pure, is_view, packet_of

aten = torch.ops.aten
READS, READS_OF_ONE = 4, 8  # tensors that Inductor reads at most in a loop that is computed several times, or once
OPERATIONS = 30  # of a loop that is computed several times
HEAVY = aten.exp, aten.sigmoid  # on a CPU it computes loops with these once


def fused(module: fx.GraphModule) -> fx.GraphModule:
    """The graph as compiled code takes memory, for fake tensors.

    Element-wise operations that only such read take none, by Inductor's limits. Others write into what they read for
    the last time, if that is of the same layout.
    """
    graph = module.graph
    inside: dict[fx.Node, _Loop] = {}  # operations that are computed in the loops of their readers
    loops: list[fx.Node] = []
    for node in [node for node in graph.nodes if _is_loop(node)]:
        loop = _Loop.of(node, inside)
        if all(map(_is_loop, node.users)) and loop.is_inside(len(node.users)):
            inside[node] = loop
            continue
        read = loop.read
        with graph.inserting_before(node):
            loops.append(graph.call_function(_written, (*_layout(node), *read)))
        loops[-1].meta = dict(node.meta)
        node.replace_all_uses_with(loops[-1])
        graph.erase_node(node)
    for node in reversed(inside):
        graph.erase_node(node)
    _join(loops)
    _sort(graph)
    places = {node: place for place, node in enumerate(graph.nodes)}
    for loop in loops:
        for base in loop.all_input_nodes:
            is_last = max(base.users, key=places.__getitem__) is loop
            if is_last and _layout(base) == _layout(loop) and _is_own(base):
                loop.target, loop.args = overwritten, (base, *loop.all_input_nodes)
                break
    return module


def _join(loops: Sequence[fx.Node]) -> None:
    """Let loops that read the same tensor wait for what the next of them reads, if they can: Inductor joins them."""
    last: dict[fx.Node, fx.Node] = {}  # loops by what they read
    for loop in loops:
        for base in loop.all_input_nodes:
            before = last.get(base)
            if before is not None and _layout(before)[0] == _layout(loop)[0] and before not in cone(loop):
                before.args = (*before.args, *loop.all_input_nodes)
            last[base] = loop


def _sort(graph: fx.Graph) -> None:
    """Order nodes after what they read, and else as they are."""
    (output,) = graph.find_nodes(op="output")
    done: set[fx.Node] = set()
    for node in list(graph.nodes):
        waiting = [node]
        while waiting:
            now = waiting[-1]
            missing = [given for given in now.all_input_nodes if given not in done]
            waiting += missing
            if not missing:
                waiting.pop()
                if now not in done and now is not output:
                    output.prepend(now)
                done.add(now)


class _Loop(NamedTuple):
    """What a loop reads, how many operations it computes for an element, and whether one is heavy."""

    read: Sequence[fx.Node]
    operations: int
    is_heavy: bool

    @classmethod
    def of(cls, node: fx.Node, inside: Mapping[fx.Node, "_Loop"]) -> "_Loop":
        """The loop that computes a node, with what is inside."""
        given = [inside.get(value, cls([value], 0, False)) for value in node.all_input_nodes]
        read = list(dict.fromkeys(base for loop in given for base in loop.read))
        heavy = packet_of(node) in HEAVY and node.meta["val"].device.type == "cpu"
        return cls(read, 1 + sum(loop.operations for loop in given), heavy or any(loop.is_heavy for loop in given))

    def is_inside(self, readers: int) -> bool:
        """Whether Inductor computes it in the loops of its readers."""
        if readers <= 1:
            return len(self.read) <= READS_OF_ONE
        return len(self.read) <= READS and self.operations <= OPERATIONS and not self.is_heavy


def _is_loop(node: fx.Node) -> bool:
    lengths = _layout(node)[:2]
    fixed = all(isinstance(length, int) for ends in lengths for length in ends)
    return bool(lengths) and fixed and node.op == "call_function" and is_pointwise(node) and is_pure(node)


def _is_own(node: fx.Node) -> bool:
    """Whether nothing else has its memory: neither a view, nor what it is a view of."""
    if any(map(is_view, node.users)):
        return False
    while is_view(node):
        (node,) = node.all_input_nodes
        if len(node.users) > 1:
            return False
    return bool(node.op == "call_function")


def _layout(node: fx.Node) -> tuple[Any, ...]:
    """Shape, strides, dtype and device of a tensor; nothing for other nodes."""
    x = node.meta.get("val")
    return (tuple(x.shape), x.stride(), x.dtype, x.device) if isinstance(x, Tensor) else ()


def _written(
    shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device, *read: Any
) -> Tensor:
    """The result of a loop, which reads these tensors."""
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def overwritten(into: Tensor, *read: Any) -> Tensor:
    """The result of a loop that writes it in place of a tensor that it reads."""
    torch.autograd.graph.increment_version(into)  # it is another tensor now
    return into.as_strided(into.shape, into.stride())
