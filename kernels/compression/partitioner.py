"""The partitioner for torch.compile."""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, Self

from torch import fx

from actfit.kernels.compression import private
from actfit.kernels.compression.crossing import Graph
from actfit.kernels.compression.cut import Cut, cut_of
from actfit.kernels.compression.parts import PlannedParts
from actfit.kernels.compression.splice import crossings, put_codes
from actfit.kernels.engine import codes, ops, planes, reference_codes
from actfit.kernels.errors import KernelError
from actfit.kernels.methods.every_tensor import EveryTensor
from actfit.kernels.planning.modules import check_repeated
from actfit.kernels.planning.plan import Plan
from actfit.kernels.private import as_partitioner, check_release

WORSE = 2.0  # times what another graph of the same tensors saves, from which on a user is warned; our choice

OPERATIONS = 200  # of a loop on a CPU: decoding a tensor takes 15 to 30, so a gate by its derivative more than 50


def options(
    bits: int | None = None, *, rounding: str | None = None, plan: Plan | str | PathLike[str] | None = None
) -> dict[str, Any]:
    """Options of torch.compile for a model that saves codes for its backward pass.

    They can be combined with others: ``torch.compile(model, options={**options(bits=4), "max_autotune": True})``.
    A `post_grad_custom_pre_pass` of your own is set in `torch._inductor.config` before: what this gives runs it first.

    Parameters
    ----------
    bits
        Of each element, 2 to 8, by default 4; minimum and step of each group of 64 add half a bit per element.
    rounding
        "nearest", the default, or "stochastic", which is unbiased; PyTorch's random state seeds it.
    plan
        The result of `make_plan`, or a file with it: bits for each tensor, and rounding.

    Raises
    ------
    KernelError
        For other values, or on a release of PyTorch that is too old.
    """
    check_release()
    if plan is None:
        return _options(EveryTensor(4 if bits is None else bits, "nearest" if rounding is None else rounding))
    if bits is not None or rounding is not None:
        raise KernelError("bits and rounding must not be given beside plan, which says both")
    loaded = plan if isinstance(plan, Plan) else Plan.load(plan)
    if not loaded.compiled:
        raise KernelError(
            "plan must be of a compiled model, got one for compress, which saves other tensors; make one by"
            " make_plan(model, inputs, budget, compiled=True), or give this one to compress(model, plan=...)"
        )
    method = loaded.method
    return _options(PlannedParts(method.bits, method.rounding, method.at_site), loaded.modules)


def _options(method: EveryTensor, modules: Mapping[str, int] | None = None) -> dict[str, Any]:
    as_partitioner(CodedPartitioner)
    return {"custom_partitioner_fn": CodedPartitioner(method, modules), **private.settings(OPERATIONS)}


class CodedPartitioner:
    """Cuts the graph of forward and backward as PyTorch does, then codes the tensors that cross.

    Attributes
    ----------
    method
        compress or a plan, which sets the bits.
    modules
        Of the model that a plan was made for, as in `Plan`.
    graphs
        The graphs that were compiled in this process; not those from Inductor's cache.
    """

    smallest: int | None = None  # least elements of a tensor with codes; None: the default

    def __init__(self, method: EveryTensor, modules: Mapping[str, int] | None = None) -> None:
        self.method, self.modules = method, modules or {}
        self.graphs: list[Graph] = []
        self._warned = False

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **arguments: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The forward and the backward graph."""
        private.check_regions(gm.graph)
        forward, backward = private.partition(gm, joint_inputs, **arguments)
        # PyTorch says nothing of the inputs of a nested_compile_region: the graph around it holds them, or its user.
        is_region = not joint_inputs
        count = len(forward.graph.find_nodes(op="placeholder"))
        static = frozenset(range(count) if is_region else arguments.get("static_lifetime_input_indices") or ())
        cut = cut_of(forward.graph, backward.graph, arguments["num_fwd_outputs"], static, self.method, self.smallest)
        self._write(forward, backward, cut)
        graph = Graph(tuple(crossings(cut, self.method.rounding)))
        self._compare(graph)
        self.graphs.append(graph)
        return forward, backward

    def _compare(self, graph: Graph) -> None:
        """Warn once if a graph for other sizes saves much less than one before."""
        best = max((before.ratio for before in self.graphs if before.is_like(graph)), default=0.0)
        if best > WORSE * graph.ratio and not self._warned:
            self._warned = True
            warnings.warn(
                f"sizes should not change in a compiled model: its graph for others keeps {graph.ratio:.1f} times less"
                f" for backward, one before {best:.1f} times; compile with dynamic=False, pad batches to one size, or"
                " drop a last one that is smaller",
                stacklevel=2,
            )

    def _write(self, forward: fx.GraphModule, backward: fx.GraphModule, cut: Cut) -> None:
        """Change both graphs."""
        sites = set(cut.sites.values())
        planned = self.method if isinstance(self.method, PlannedParts) and self.method.at_site else None
        if planned and sites and not any(map(planned.known, sites)):
            raise KernelError(
                f"plan must be of this model, got one without {min(sites)!r}; plan anew by"
                " make_plan(model, inputs, budget, compiled=True)"
            )
        if planned and any(site in planned.at_site for site in sites):  # else a part, compiled by itself
            check_repeated(self.modules, (site.partition(": ")[0] for site in sites), "the compiled model")
        put_codes(forward, backward, cut, self.method.rounding)

    def uuid(self) -> str:
        """The key of this partitioner in Inductor's caches: its method, and a hash of this package's source."""
        return f"actfit.kernels.compression {_text()} {self.method!r}"

    def __deepcopy__(self, memo: object) -> Self:
        """Itself: Inductor copies its options, but the report needs this object's graphs."""
        return self


ENGINE = codes, ops, planes, reference_codes  # what graphs call, and how its results lie in memory


@cache
def _text() -> str:
    files = [*sorted(Path(__file__).parent.glob("*.py")), *(Path(str(module.__file__)) for module in ENGINE)]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
