"""Regions of an FX graph: element-wise operations on one source, which can save one derivative for each output.

A region becomes one call. The call stands at the first of the region's nodes that comes after everything the region
reads. A node is left alone if the move would change what it reads or which random numbers it draws.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import fx

from kernels.forward_ad.members import may_be_aside, may_be_member
from kernels.forward_ad.observations import Observation, Observations, hint


@dataclass(frozen=True)
class Region:
    """Nodes that are computed from one source.

    Attributes
    ----------
    source
        The node from which all others are computed.
    nodes
        The nodes, in the order of the graph.
    outputs
        The nodes that are read outside.
    constants
        Other nodes that the region reads; they need no gradient.
    place
        The node before which the call is inserted.
    saved
        Bytes that autograd saves for these nodes alone.
    instead
        Bytes of the derivatives, one for each output.
    """

    source: fx.Node
    nodes: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    constants: tuple[fx.Node, ...]
    place: fx.Node
    saved: int
    instead: int

    @property
    def gain(self) -> int:
        """Bytes that the replacement saves."""
        return self.saved - self.instead


def find(module: fx.GraphModule, observations: Observations) -> list[Region]:
    """The regions whose replacement saves bytes, disjoint, in the order in which to replace them."""
    finder = _Finder(module, observations)
    regions: list[Region] = []
    while True:
        before = len(regions)
        for source, nodes in finder.groups().items():
            region = finder.best(source, nodes)
            if region is not None and region.gain > 0:
                finder.accept(region)
                regions.append(region)
        if len(regions) == before:
            return regions


class _Finder:
    def __init__(self, module: fx.GraphModule, observations: Observations) -> None:
        self.module, self.observations = module, observations
        self.at: dict[fx.Node, float] = {node: position for position, node in enumerate(module.graph.nodes)}
        self.savers: dict[int, set[fx.Node]] = {}
        self.written: dict[int, float] = {}  # storage: position of the last write
        used = _used(observations)
        for node, observation in observations.of.items():
            # The caller may hold any result.
            saved = observation.storages if node.op == "output" else observation.saved
            for storage in saved if node in used else ():
                self.savers.setdefault(storage, set()).add(node)
            for storage in observation.writes:
                self.written[storage] = self.at[node]
        self.taken: set[fx.Node] = set()
        self.members = {node for node in observations.of if self._may_be_member(node)}

    def groups(self) -> dict[fx.Node, list[fx.Node]]:
        """All members, grouped by their source."""
        root: dict[fx.Node, fx.Node] = {}
        groups: dict[fx.Node, list[fx.Node]] = {}
        for node in self.module.graph.nodes:
            if node in self.members:
                era = self._observed(node).era
                inside = {
                    operand
                    for operand in self._observed(node).varying
                    if operand in root and self._observed(operand).era == era
                }
                sources = {root[operand] if operand in inside else operand for operand in self._observed(node).varying}
                if len(sources) == 1:
                    root[node] = sources.pop()
                    groups.setdefault(root[node], []).append(node)
        return groups

    def best(self, source: fx.Node, nodes: Sequence[fx.Node]) -> Region | None:
        """The region among `nodes` that saves most: all of them, all without an output that costs more than it saves,
        or those after an output."""
        best = self._fitted(source, nodes)
        while best is not None:
            others = [self._fitted(best.source, _without(best, output)) for output in best.outputs]
            others += [self._fitted(output, self._following(best, output)) for output in best.outputs]
            better = max((region for region in others if region), key=lambda region: region.gain, default=None)
            if better is None or better.gain <= best.gain:
                break
            best = better
        return best

    def accept(self, region: Region) -> None:
        """Treat the region as replaced from now on."""
        self.members -= set(region.nodes)
        self.taken |= set(region.nodes)
        for savers in self.savers.values():
            savers.difference_update(region.nodes)
        at = self._where(region.place, region.nodes)
        for node in region.nodes:
            self.at[node] = at

    def _observed(self, node: fx.Node) -> Observation:
        return self.observations.of[node]

    def _may_be_member(self, node: fx.Node) -> bool:
        changed = any(self.written.get(storage, -1) > self.at[node] for storage in self._observed(node).storages)
        return not changed and may_be_member(node, self.module, self.observations)

    def _following(self, region: Region, source: fx.Node) -> list[fx.Node]:
        following: set[fx.Node] = set()
        for node in region.nodes:
            varying = self._observed(node).varying
            if varying and all(operand is source or operand in following for operand in varying):
                following.add(node)
        return [node for node in region.nodes if node in following]

    def _fitted(self, source: fx.Node, nodes: Sequence[fx.Node]) -> Region | None:
        """A region of `nodes` without those that cannot be moved to the call's place; None if nothing is left."""
        while nodes:
            nodes = self._with_asides(nodes)
            within = set(nodes)
            read = dict.fromkeys(node for member in nodes for node in member.all_input_nodes if node not in within)
            users = [user for node in nodes for user in node.users if user not in within]
            first = min(users, key=self.at.__getitem__, default=None)  # it must read what the call gives
            late = {node for node in read if first is not None and self.at[node] >= self.at[first]}
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
        """`nodes`, and the nodes without a gradient that read them and are read by no other: comparisons, detach."""
        within, asides = set(nodes), set[fx.Node]()
        reached = [user for node in nodes for user in node.users]
        while reached:
            node = reached.pop()
            same_era = self._observed(node).era == self._observed(nodes[0]).era
            if node not in within | asides and same_era and may_be_aside(node, self._observed(node)):
                asides.add(node)
                reached += node.users
        for node in sorted(asides, key=self.at.__getitem__, reverse=True):
            if node.users and within >= set(node.users):
                within.add(node)
        return sorted(within, key=self.at.__getitem__)

    def _crossing(self, nodes: Sequence[fx.Node], place: fx.Node) -> fx.Node | None:
        """The last of `nodes` that draws random numbers, if the move would change the order of draws."""
        drawing = [node for node in nodes if self._observed(node).random]
        if not drawing:
            return None
        between = [self._where(place, nodes), *(self.at[node] for node in drawing)]
        low, high = min(between), max(between)
        others = (
            node for node, observation in self.observations.of.items() if observation.random and node not in set(nodes)
        )
        return drawing[-1] if any(low <= self.at[node] <= high for node in others) else None

    def _where(self, place: fx.Node, nodes: Sequence[fx.Node]) -> float:
        return self.at[place] - (0 if place in nodes else 0.5)

    def _changing(self, read: Iterable[fx.Node], nodes: Sequence[fx.Node]) -> bool:
        """Whether memory that a region reads or returns is written after its first node."""
        storages = {storage for node in [*read, *nodes] for storage in self._observed(node).storages}
        return any(self.written.get(storage, -1) >= self.at[nodes[0]] for storage in storages)

    def _region(
        self, source: fx.Node, nodes: Sequence[fx.Node], read: Iterable[fx.Node], place: fx.Node
    ) -> Region | None:
        within = set(nodes)
        value = self._observed(source).value
        outputs = tuple(node for node in nodes if set(node.users) - within)
        if value is None or not outputs or not all(self._observed(node).requires_grad for node in outputs):
            return None
        freed: dict[int, int] = {}
        for node in nodes:
            for storage, size in self._observed(node).saved.items():
                if (
                    self.savers.get(storage)
                    and self.savers[storage] <= within
                    and storage not in self.observations.outside
                ):
                    freed[storage] = size
        size = math.prod(map(hint, value.shape)) * value.element_size()
        constants = tuple(node for node in read if node is not source)
        return Region(source, tuple(nodes), outputs, constants, place, sum(freed.values()), size * len(outputs))


def _used(observations: Observations) -> set[fx.Node]:
    """The nodes that gradients pass through; what the others save is freed with them."""
    used: set[fx.Node] = set()
    for node, observation in reversed(observations.of.items()):
        through = (user for user in node.users if user in used)
        if node.op == "output" or observation.writes or any(node in observations.of[user].varying for user in through):
            used.add(node)
    return used


def _less(nodes: Sequence[fx.Node], gone: set[fx.Node]) -> list[fx.Node]:
    """`nodes` without those in `gone` and all that read these."""
    gone = set(gone)
    for node in nodes:
        if gone & set(node.all_input_nodes):
            gone.add(node)
    return [node for node in nodes if node not in gone]


def _without(region: Region, output: fx.Node) -> list[fx.Node]:
    """A region's nodes without an output and the nodes that only it needs."""
    if any(user in region.nodes for user in output.users):
        return []
    gone = {output}
    for node in reversed(region.nodes):
        if node.users and gone >= set(node.users):
            gone.add(node)
    return [node for node in region.nodes if node not in gone]
