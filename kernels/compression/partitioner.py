"""The partitioner that torch.compile is given."""

import hashlib
from collections.abc import Sequence
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, Self

import torch
from torch import fx

import kernels.engine.reference_codes as arithmetic
from kernels.compression import private
from kernels.compression.crossing import Graph
from kernels.compression.cut import Cut, cut_of
from kernels.compression.parts import PlannedParts
from kernels.compression.splice import crossings, put_codes
from kernels.errors import KernelError
from kernels.methods.every_tensor import EveryTensor
from kernels.planning.plan import Plan

TORCH = ((2, 9), (2, 13))  # the releases that this package supports; CI has the last, the others were tested by hand


def options(
    bits: int | None = None, *, rounding: str | None = None, plan: Plan | str | PathLike[str] | None = None
) -> dict[str, Any]:
    """Options of torch.compile by which a model saves codes for its backward pass.

    They join others: ``torch.compile(model, options={**options(bits=4), "max_autotune": True})``.

    Parameters
    ----------
    bits
        Of each element, 2 to 8, by default 4; half a bit more goes to each group of 64, for its minimum value and its
        step.
    rounding
        "nearest", the default, or "stochastic", whose decoded values have the right mean; PyTorch's random state seeds
        it.
    plan
        Of `make_plan`, or a file that it was saved in: it says bits and rounding, tensor by tensor.

    Raises
    ------
    KernelError
        For other values, and on a release of PyTorch that was not tested.
    """
    check_release()
    if plan is None:
        return _options(EveryTensor(4 if bits is None else bits, "nearest" if rounding is None else rounding))
    if bits is not None or rounding is not None:
        raise KernelError("bits and rounding must not be given beside plan, which says both")
    found = plan if isinstance(plan, Plan) else Plan.load(plan)
    if not found.compiled:
        raise KernelError(
            "plan must be of a compiled model, got one for eager mode, which saves other tensors; make one by"
            " make_plan(model, inputs, budget, compiled=True), or give this one to convert(model, plan=...)"
        )
    method = found.method
    return _options(PlannedParts(method.bits, method.rounding, method.at_site))


def check_release() -> None:
    """Raise KernelError on a release of PyTorch that was not tested."""
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if not TORCH[0] <= release <= TORCH[1]:
        first, last = (".".join(map(str, one)) for one in TORCH)
        raise KernelError(
            f"kernels.compression works with torch {first} to {last}, not {torch.__version__}; "
            'in eager mode, kernels.convert(model, "compress", bits=4) works with all'
        )


def _options(method: EveryTensor) -> dict[str, Any]:
    return {"custom_partitioner_fn": CodedPartitioner(method)}


class CodedPartitioner(private.CustomPartitionerFn):
    """Cuts the graph of forward and backward as PyTorch does, then codes what crosses.

    Attributes
    ----------
    method
        Says the bits.
    graphs
        What crossed in each graph that was compiled in this process; one that came from Inductor's cache is not here.
    """

    smallest: int | None = None  # elements of a tensor that may have codes, if not as usual

    def __init__(self, method: EveryTensor) -> None:
        self.method = method
        self.graphs: list[Graph] = []

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **arguments: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The forward and the backward graph."""
        forward, backward = private.partition(gm, joint_inputs, **arguments)
        static = frozenset(arguments.get("static_lifetime_input_indices") or ())
        cut = cut_of(forward.graph, backward.graph, arguments["num_fwd_outputs"], static, self.method, self.smallest)
        self._write(forward, backward, cut)
        self.graphs.append(Graph(tuple(crossings(cut, self.method.rounding))))
        return forward, backward

    def _write(self, forward: fx.GraphModule, backward: fx.GraphModule, cut: Cut) -> None:
        """Change both graphs."""
        sites = set(cut.sites.values())
        planned = self.method if isinstance(self.method, PlannedParts) and self.method.at_site else None
        if planned and sites and not any(map(planned.known, sites)):
            raise KernelError(
                f"plan must be of this model, got one without {min(sites)!r}; plan anew by"
                " make_plan(model, inputs, budget, compiled=True)"
            )
        put_codes(forward, backward, cut, self.method.rounding)

    def uuid(self) -> str:
        """What Inductor's caches know this partitioner by: its method, and the text of this package."""
        return f"kernels.compression {_text()} {self.method!r}"

    def __deepcopy__(self, memo: object) -> Self:
        """Itself: Inductor copies its options, and the report has to find the graphs."""
        return self


@cache
def _text() -> str:
    files = [*sorted(Path(__file__).parent.glob("*.py")), Path(arithmetic.__file__)]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
