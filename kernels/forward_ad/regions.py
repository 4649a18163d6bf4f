"""Where in an FX graph one derivative can be saved in place of what autograd saves: regions of one source.

A region is made of element-wise operations that all follow from one tensor. It becomes one call, which stands where
its first node stood that follows all it reads. What would then read or draw anything else than before is left alone.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import fx

from kernels.forward_ad.facts import Fact, Facts, hint
from kernels.forward_ad.members import may_be_aside, may_be_member


@dataclass(frozen=True)
class Region:
    """Nodes that follow from one source.

    Attributes
    ----------
    source
        The node that all others follow from.
    nodes
        In order.
    outputs
        Those that are read elsewhere.
    constants
        What the nodes read besides, which needs no gradient.
    place
        The node before which the call goes.
    kept
        Bytes that autograd saves for it alone.
    instead
        Bytes of the derivatives, one for each output.
    """

    source: fx.Node
    nodes: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    constants: tuple[fx.Node, ...]
    place: fx.Node
    kept: int
    instead: int

    @property
    def gain(self) -> int:
        """Bytes."""
        return self.kept - self.instead


def find(module: fx.GraphModule, facts: Facts) -> list[Region]:
    """The regions that save bytes, no two of which share a node, in the order in which they are to be replaced."""
    finder = _Finder(module, facts)
    found: list[Region] = []
    while True:
        before = len(found)
        for source, nodes in finder.groups().items():
            region = finder.best(source, nodes)
            if region is not None and region.gain > 0:
                finder.accept(region)
                found.append(region)
        if len(found) == before:
            return found


class _Finder:
    def __init__(self, module: fx.GraphModule, facts: Facts) -> None:
        self.module, self.facts = module, facts
        self.at: dict[fx.Node, float] = {node: position for position, node in enumerate(module.graph.nodes)}
        self.keepers: dict[int, set[fx.Node]] = {}
        self.written: dict[int, float] = {}  # storage: where last
        used = _used(facts)
        for node, fact in facts.of.items():
            kept = fact.storages if node.op == "output" else fact.keeps  # who is given a result may keep it
            for storage in kept if node in used else ():
                self.keepers.setdefault(storage, set()).add(node)
            for storage in fact.writes:
                self.written[storage] = self.at[node]
        self.taken: set[fx.Node] = set()
        self.members = {node for node in facts.of if self._may_be_member(node)}

    def groups(self) -> dict[fx.Node, list[fx.Node]]:
        """All members, by the one source they follow from."""
        root: dict[fx.Node, fx.Node] = {}
        groups: dict[fx.Node, list[fx.Node]] = {}
        for node in self.module.graph.nodes:
            if node in self.members:
                era = self._of(node).era
                inside = {one for one in self._of(node).varying if one in root and self._of(one).era == era}
                sources = {root[one] if one in inside else one for one in self._of(node).varying}
                if len(sources) == 1:
                    root[node] = sources.pop()
                    groups.setdefault(root[node], []).append(node)
        return groups

    def best(self, source: fx.Node, nodes: Sequence[fx.Node]) -> Region | None:
        """The region among `nodes` that saves most: of all of them, or without an output that costs more than it saves,
        or from an output on."""
        best = self._fitted(source, nodes)
        while best is not None:
            others = [self._fitted(best.source, _without(best, output)) for output in best.outputs]
            others += [self._fitted(output, self._following(best, output)) for output in best.outputs]
            better = max((one for one in others if one), key=lambda one: one.gain, default=None)
            if better is None or better.gain <= best.gain:
                break
            best = better
        return best

    def accept(self, region: Region) -> None:
        """Go on as if it were replaced."""
        self.members -= set(region.nodes)
        self.taken |= set(region.nodes)
        for keepers in self.keepers.values():
            keepers.difference_update(region.nodes)
        at = self._where(region.place, region.nodes)
        for node in region.nodes:
            self.at[node] = at

    def _of(self, node: fx.Node) -> Fact:
        return self.facts.of[node]

    def _may_be_member(self, node: fx.Node) -> bool:
        changed = any(self.written.get(storage, -1) > self.at[node] for storage in self._of(node).storages)
        return not changed and may_be_member(node, self.module, self.facts)

    def _following(self, region: Region, source: fx.Node) -> list[fx.Node]:
        found: set[fx.Node] = set()
        for node in region.nodes:
            varying = self._of(node).varying
            if varying and all(one is source or one in found for one in varying):
                found.add(node)
        return [node for node in region.nodes if node in found]

    def _fitted(self, source: fx.Node, nodes: Sequence[fx.Node]) -> Region | None:
        """A region of `nodes`, less what cannot be moved to where it goes; None if nothing is left."""
        while nodes:
            nodes = self._with_asides(nodes)
            within = set(nodes)
            read = dict.fromkeys(one for node in nodes for one in node.all_input_nodes if one not in within)
            users = [user for node in nodes for user in node.users if user not in within]
            first = min(users, key=self.at.__getitem__, default=None)  # it must read what the call gives
            late = {one for one in read if first is not None and self.at[one] >= self.at[first]}
            if late:
                nodes = _less(nodes, {node for node in nodes if late & set(node.all_input_nodes)})
                continue
            begins = max(map(self.at.__getitem__, read), default=-1)
            follows = [node for node in nodes if self.at[node] > begins] + ([] if first is None else [first])
            place = min(follows, key=self.at.__getitem__)
            if place in self.taken:
                return None
            if crossing := self._crossing(nodes, place):
                nodes = _less(nodes, {crossing})
            elif self._changing([source, *read], nodes):
                return None
            else:
                return self._region(source, nodes, read, place)
        return None

    def _with_asides(self, nodes: Sequence[fx.Node]) -> list[fx.Node]:
        """`nodes`, and what follows from them, gives no gradient, and is read by nobody else: comparisons, detach."""
        within, found = set(nodes), set[fx.Node]()
        reached = [user for node in nodes for user in node.users]
        while reached:
            node = reached.pop()
            same_era = self._of(node).era == self._of(nodes[0]).era
            if node not in within | found and same_era and may_be_aside(node, self._of(node)):
                found.add(node)
                reached += node.users
        for node in sorted(found, key=self.at.__getitem__, reverse=True):
            if node.users and within >= set(node.users):
                within.add(node)
        return sorted(within, key=self.at.__getitem__)

    def _crossing(self, nodes: Sequence[fx.Node], place: fx.Node) -> fx.Node | None:
        """The last of `nodes` that draws random numbers, if the move would have another draw before or after it."""
        drawing = [node for node in nodes if self._of(node).random]
        if not drawing:
            return None
        between = [self._where(place, nodes), *(self.at[node] for node in drawing)]
        low, high = min(between), max(between)
        others = (node for node, fact in self.facts.of.items() if fact.random and node not in set(nodes))
        return drawing[-1] if any(low <= self.at[one] <= high for one in others) else None

    def _where(self, place: fx.Node, nodes: Sequence[fx.Node]) -> float:
        return self.at[place] - (0 if place in nodes else 0.5)

    def _changing(self, read: Iterable[fx.Node], nodes: Sequence[fx.Node]) -> bool:
        """Whether memory that a region reads or gives is written once the region has begun."""
        storages = {storage for node in [*read, *nodes] for storage in self._of(node).storages}
        return any(self.written.get(storage, -1) >= self.at[nodes[0]] for storage in storages)

    def _region(
        self, source: fx.Node, nodes: Sequence[fx.Node], read: Iterable[fx.Node], place: fx.Node
    ) -> Region | None:
        within = set(nodes)
        value = self._of(source).value
        outputs = tuple(node for node in nodes if set(node.users) - within)
        if value is None or not outputs or not all(self._of(node).needs for node in outputs):
            return None
        freed: dict[int, int] = {}
        for node in nodes:
            for storage, size in self._of(node).keeps.items():
                if self.keepers.get(storage) and self.keepers[storage] <= within and storage not in self.facts.outside:
                    freed[storage] = size
        size = math.prod(map(hint, value.shape)) * value.element_size()
        constants = tuple(one for one in read if one is not source)
        return Region(source, tuple(nodes), outputs, constants, place, sum(freed.values()), size * len(outputs))


def _used(facts: Facts) -> set[fx.Node]:
    """The nodes through which gradients come; what the others save dies with them."""
    used: set[fx.Node] = set()
    for node, fact in reversed(facts.of.items()):
        through = (user for user in node.users if user in used)
        if node.op == "output" or fact.writes or any(node in facts.of[user].varying for user in through):
            used.add(node)
    return used


def _less(nodes: Sequence[fx.Node], gone: set[fx.Node]) -> list[fx.Node]:
    """`nodes` but for those that are gone, and what follows from these."""
    gone = set(gone)
    for node in nodes:
        if gone & set(node.all_input_nodes):
            gone.add(node)
    return [node for node in nodes if node not in gone]


def _without(region: Region, output: fx.Node) -> list[fx.Node]:
    """A region's nodes but for an output and what leads to it alone."""
    if any(user in region.nodes for user in output.users):
        return []
    gone = {output}
    for node in reversed(region.nodes):
        if node.users and gone >= set(node.users):
            gone.add(node)
    return [node for node in region.nodes if node not in gone]
