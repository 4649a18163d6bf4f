"""What loops compute, computed again for each operation that reads it.

In one loop that costs nothing, as equal terms are computed once. But Inductor may hold in memory what several
operations read: if that is computed from more than four tensors, or on a CPU by an exponential function.
"""

from torch import fx

from kernels.compression.nodes import WAITS_BY

LONGEST = 256  # operations; what takes more is shared, for the copies could grow exponentially


class Computations:
    """The computations of the loops of one shape, from nodes that are read from memory."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.lengths: dict[fx.Node, int] = {}  # in operations, repeated ones too

    def read(self, node: fx.Node) -> None:
        """Record that a node is read from memory; placeholders and what waits for others are in any case."""
        self.lengths[node] = 0

    def for_one_operation(self, node: fx.Node) -> fx.Node:
        """The node, or a copy that no other operation reads of one that is computed."""
        if self._length(node) not in range(1, LONGEST):
            return node
        own = {argument: self.for_one_operation(argument) for argument in node.all_input_nodes}
        copy = self.graph.node_copy(node, own.__getitem__)
        self.lengths[copy] = self.lengths[node]
        return copy

    def _length(self, node: fx.Node) -> int:
        if node not in self.lengths:
            is_read = node.op != "call_function" or WAITS_BY in node.meta
            self.lengths[node] = 0 if is_read else 1 + sum(map(self._length, node.all_input_nodes))
        return self.lengths[node]
