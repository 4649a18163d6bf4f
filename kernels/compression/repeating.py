"""What loops compute, computed again for each operation that reads it.

In one loop that costs nothing, as equal terms are computed once. But Inductor may hold in memory what several
operations read: what takes many tensors or operations, and on a CPU exponential functions and logarithms.
"""

from torch import fx

from actfit.kernels.compression.nodes import WAITS_BY, is_mutable

LONGEST = 512  # operations, equal ones too; from this on a computation is shared: copies could grow exponentially


class Computations:
    """The computations of the loops of one shape, from nodes that are read from memory."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.lengths: dict[fx.Node, int] = {}  # in operations
        self.may_repeat = not any(map(is_mutable, graph.nodes))  # a copy could read what was changed in between

    def read(self, node: fx.Node) -> None:
        """Record that a node is read from memory. Placeholders and nodes that wait need no record."""
        self.lengths[node] = 0

    def for_one_operation(self, node: fx.Node) -> fx.Node:
        """The node, or if it is computed a copy that no other operation reads."""
        if not self.may_repeat or not 0 < self._length(node) < LONGEST:
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
