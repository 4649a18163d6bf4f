"""Watches the errors of decoded tensors while a model trains by a plan: one tensor at a time, in turn.

Where PyTorch's own kernels run the graphs, the exact tensor is there in forward, so one tensor in each pass takes next
to no time, and the memory of a few pieces. Code that Inductor generates keeps no such tensor: there the part of a graph
that makes it runs beside the generated code, in one of many calls; on a GPU only where that takes no more memory than
a step took before.
"""

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from math import lcm
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from actfit.kernels import private
from actfit.kernels.compression.cut import Cut
from actfit.kernels.compression.forms import Groups
from actfit.kernels.compression.nodes import cone
from actfit.kernels.engine.codes import part_of
from actfit.kernels.errors import warn
from actfit.kernels.graph.codes import decode, encode, flat_of
from actfit.kernels.graph.lifetimes import live_bytes
from actfit.kernels.graph.splice import replace_codes
from actfit.kernels.methods.planned import in_model
from actfit.kernels.planning.decoded import relative_error
from actfit.kernels.planning.sensitivity import like_site
from actfit.kernels.text import table

EVERY = 97  # calls of graphs that Inductor compiles, of which one is watched; a prime: all of a model have turns
TIMES = 2  # the planned error, above which a plan is no longer of this model
NAMESPACES = ("aten", "prims")
BESIDE = "watched"  # a key of what goes with a graph
PIECE, PIECES = 1 << 16, 8  # elements of a piece, nearly, and how many pieces of a tensor are read


class _Beside(NamedTuple):
    """A saved tensor of a compiled graph: its site, the part of the graph that makes it, and its codes."""

    site: str
    part: fx.GraphModule
    form: Groups
    rounding: str


class Watch:
    """The relative errors of decoded tensors, by site, when each was seen last; `str(watch)` is a table.

    Attributes
    ----------
    planned
        The errors that the plan goes by.
    seen
        ||x' - x|| / ||x|| of up to 8 pieces of the tensor.
    running
        Its `unit` is the captured module that runs in this thread: modules share graphs.
    """

    def __init__(self, planned: Mapping[str, float]) -> None:
        self.planned, self.seen, self.running = planned, dict[str, float](), threading.local()
        self._calls, self._drawn = 0, random.Random(0)  # apart from the numbers that training draws
        self._turn, self._left, self._ended, self._warned = 0, 0, True, False

    def put(self, forward: fx.GraphModule, backward: fx.GraphModule, cut: Cut) -> None:
        """Let two graphs, into which codes are written, tell of what they encode, and that backward decodes."""

        def decoding(*given: Any) -> Tensor:
            self._ended = True
            return decode(*given)

        replace_codes(forward, backward, cut, self._encoding, decoding)

    def _encoding(self, site: str) -> Callable[..., Any]:
        def encoding(x: Tensor, order: Sequence[int], group: int, *others: Any) -> Any:
            code = encode(x, order, group, *others)
            if self._is_due():
                self._see(in_model(self.running.unit.name, site), x, order, group, others[2], code)
            return code

        return encoding

    def _is_due(self) -> bool:
        """Whether the tensor that is encoded now has its turn; after the last tensor of a pass comes the first."""
        if private.current_graph_task_id() != -1:
            return False  # in backward, where a checkpoint runs forward again
        if self._ended:
            self._turn = 1 if self._left > 0 else self._turn + 1
            self._left, self._ended = self._turn, False
        self._left -= 1
        return self._left == 0

    def of_compiled(self, forward: fx.GraphModule, cut: Cut, rounding: str) -> None:
        """Note in a forward graph, before codes are written into it, what `beside` runs of it."""
        forward.meta[BESIDE] = [
            _Beside(site, _part(forward, node), form, rounding)
            for node, site in cut.sites.items()
            if isinstance(form := cut.forms[node], Groups) and all(map(_may_run_beside, cone(node)))
        ]

    def beside(self, forward: fx.GraphModule, given: Sequence[Any]) -> None:
        """See one of the tensors that a compiled graph encodes, in one of many calls, from the graph's inputs."""
        parts = forward.meta.get(BESIDE)
        if not parts or private.current_graph_task_id() != -1:
            return
        self._calls += 1
        if self._calls % EVERY or self._is_captured(given):
            return
        planned = [part for part in parts if in_model(self.running.unit.name, part.site) in self.planned]
        if not planned:
            return
        site, part, form, rounding = self._drawn.choice(planned)
        devices, more = {x.device for x in given if isinstance(x, Tensor)}, max(live_bytes(part.graph, inputs=False))
        if not all(has_room(device, more) for device in devices):
            return
        group, of_roots = form.layout.group, form.of_roots
        with torch.no_grad(), torch.random.fork_rng([device for device in devices if device.type == "cuda"]):
            x = flat_of(part(*given), form.layout.order)
            exact = torch.cat([x[place] for place in _places(x, group)])
            code = encode(exact, (0,), group, form.bits, rounding == "stochastic", of_roots, False)
            self._compare(in_model(self.running.unit.name, site), exact, group, of_roots, code)

    def _is_captured(self, given: Sequence[Any]) -> bool:
        """Whether a CUDA graph records what runs, whose numbers must not be waited for."""
        on_gpu = any(isinstance(x, Tensor) and x.is_cuda for x in given)
        return on_gpu and torch.cuda.is_current_stream_capturing()

    def _see(self, site: str, x: Tensor, order: Sequence[int], group: int, of_roots: bool, code: Any) -> None:
        if site not in self.planned or private.is_fake(x) or self._is_captured([x]):
            return
        places = _places(x, group)
        codes = torch.cat([part_of(code[0], place) for place in places], -1)
        low, step = (torch.cat([end[p.start // group : -(-p.stop // group)] for p in places]) for end in code[1:3])
        exact = torch.cat([flat_of(x, order)[place] for place in places])
        self._compare(site, exact, group, of_roots, (codes, low, step))

    def _compare(self, site: str, exact: Tensor, group: int, of_roots: bool, code: Sequence[Tensor]) -> None:
        """Note the error of codes of a flat tensor, and warn once if it is not as planned."""
        planes, low, step, *_ = code
        decoded = decode(planes, low, step, None, exact.shape, (0,), group, exact.dtype, of_roots)
        self.seen[site] = error = relative_error(decoded, exact)
        if error > TIMES * self.planned[site] and not self._warned:
            self._warned = True
            warn(
                f"decoded tensors must err by at most {TIMES} times what is planned, {self.planned[site]:.2g}, got"
                f" {error:.2g} at {site!r}: its numbers are others than when the plan was made; plan again, by"
                " handle.remove() and compress(model, fit=..., inputs=...)"
            )

    def __str__(self) -> str:
        by_error = sorted(self.seen, key=self.seen.__getitem__)
        worst = {like_site(site): site for site in by_error}  # of tensors that are alike, the last
        rows = [(kind, f"{self.seen[site]:.2%}", f"{self.planned[site]:.2%}") for kind, site in worst.items()]
        return "\n".join(table([("decoded tensor, relative error", "seen last", "planned"), *rows]))


def _places(x: Tensor, group: int) -> list[slice]:
    """Up to `PIECES` pieces of a tensor, of whole groups and bytes."""
    length = max(PIECE // lcm(group, 8), 1) * lcm(group, 8)
    last = max(x.numel() - 1, 0) // length
    starts = sorted({last * part // (PIECES - 1) * length for part in range(PIECES)})
    return [slice(start, min(start + length, x.numel())) for start in starts]


def _part(forward: fx.GraphModule, node: fx.Node) -> fx.GraphModule:
    """The part of a graph that makes a tensor; it takes all of the graph's inputs."""
    graph, needed, copies = fx.Graph(), cone(node), dict[fx.Node, fx.Node]()
    for other in forward.graph.nodes:
        if other in needed or other.op == "placeholder":
            copies[other] = graph.node_copy(other, copies.__getitem__)
    graph.output(copies[node])
    return fx.GraphModule(forward, graph)


def _may_run_beside(node: fx.Node) -> bool:
    """Whether it is one of PyTorch's own operations: others, as a collective, may do more than compute."""
    return node.op != "call_function" or node.target is getitem or getattr(node.target, "namespace", "") in NAMESPACES


def has_room(device: torch.device, more: int) -> bool:
    """Whether so many bytes more are no more than what was taken before, on a GPU; a CPU's memory is not watched."""
    if device.type != "cuda":
        return True
    return bool(torch.cuda.memory_allocated(device) + more <= torch.cuda.max_memory_allocated(device))
