"""Graphs that Inductor compiles, for `compress(model, compiled=True)` and by options of torch.compile."""

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

from torch import fx

from actfit.kernels.compression import layout, private
from actfit.kernels.compression.crossing import Graph
from actfit.kernels.compression.cut import Cut
from actfit.kernels.engine import ops
from actfit.kernels.errors import warn
from actfit.kernels.graph import partition
from actfit.kernels.graph.partition import Partitioner
from actfit.kernels.graph.splice import put_codes
from actfit.kernels.methods.every_tensor import EveryTensor
from actfit.kernels.private import as_partitioner, check_release

WORSE = 2.0  # times what another graph of the same tensors saves, from which on a user is warned; our choice


def options(bits: int | None = None, *, rounding: str | None = None) -> dict[str, Any]:
    """Options of torch.compile for a model that saves codes for its backward pass.

    They can be combined with others: ``torch.compile(model, options={**options(bits=4), "max_autotune": True})``.
    A `post_grad_custom_pre_pass` of your own is set in `torch._inductor.config` before: what this gives runs it first.

    Parameters
    ----------
    bits
        Of each element, 2 to 8, by default 4; minimum and step of each group of 64 add half a bit per element.
    rounding
        "nearest", the default, or "stochastic", which is unbiased, and repeats in a new process by torch.manual_seed.

    Raises
    ------
    KernelError
        For other values, or on a release of PyTorch that is too old.
    """
    check_release()
    as_partitioner(InductorPartitioner)
    method = EveryTensor(4 if bits is None else bits, "nearest" if rounding is None else rounding)
    return {"custom_partitioner_fn": InductorPartitioner([], method, compiles=True), **private.settings()}


class InductorPartitioner(Partitioner):
    """As `Partitioner`, of graphs that Inductor compiles.

    Attributes
    ----------
    graphs
        The graphs that were compiled in this process; not those from autograd's cache, which `compress` does not use.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._own, self._warned = list[Graph](), False

    def __call__(
        self, joint: fx.GraphModule, inputs: Sequence[object], **arguments: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The forward and the backward graph."""
        private.check_regions(joint.graph)
        parts = super().__call__(joint, inputs, **arguments)
        self._compare(self.graphs[-1])
        self._own.append(self.graphs[-1])
        return parts

    def _write(self, forward: fx.GraphModule, backward: fx.GraphModule, cut: Cut, rounding: str) -> None:
        """Change both graphs."""
        if self.watch is not None:
            self.watch.of_compiled(forward, cut, rounding)
        put_codes(forward, backward, cut, rounding, compiles=True)

    def _compare(self, graph: Graph) -> None:
        """Warn once if a graph for other sizes saves much less than one before, and so holds more than that."""
        others = [before for before in self._own if before.is_like(graph) and before.after < graph.after]
        best = max((before.ratio for before in others), default=0.0)
        if best > WORSE * graph.ratio and not self._warned:
            self._warned = True
            warn(
                f"sizes should not change in a compiled model: its graph for others saves {1 / graph.ratio:.0%} of what"
                f" PyTorch would save, one before {1 / best:.0%}; pad batches to one size, or drop a last one that is"
                " smaller"
            )

    def uuid(self) -> str:
        """The key of this partitioner in Inductor's caches: its method, and a hash of this package's source."""
        return f"actfit.kernels.graph.inductor {_text()} {self.method!r}"

    def __deepcopy__(self, memo: object) -> Self:
        """Itself: Inductor copies its options, but the report needs this object's graphs."""
        return self


@cache
def _text() -> str:
    folders = (Path(str(module.__file__)).parent for module in (layout, partition, ops))
    files = [file for folder in folders for file in sorted(folder.glob("*.py"))]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
