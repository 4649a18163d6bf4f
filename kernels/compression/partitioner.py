"""The partitioner that torch.compile is given."""

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

import torch
from torch import fx

import kernels.engine.reference_codes as arithmetic
from kernels.compression import private
from kernels.compression.crossing import Graph
from kernels.compression.forms import FEWEST, MOST, Settings
from kernels.compression.splice import crossings
from kernels.errors import KernelError, shown

ROUNDINGS = ("nearest", "stochastic")
TORCH = ((2, 9), (2, 13))  # the releases that this package supports; CI has the last, the others were tested by hand


def options(bits: int = 4, *, rounding: str = "nearest") -> dict[str, Any]:
    """Options of torch.compile by which a model saves codes for its backward pass.

    They join others: ``torch.compile(model, options={**options(bits=4), "max_autotune": True})``.

    Parameters
    ----------
    bits
        Of each element, 2 to 8; half a bit more goes to each group of 64, for its minimum value and its step.
    rounding
        "nearest", or "stochastic", whose decoded values have the right mean; PyTorch's random state seeds it.

    Raises
    ------
    KernelError
        For other values, and on a release of PyTorch that was not tested.
    """
    if isinstance(bits, bool) or not isinstance(bits, int) or not FEWEST <= bits <= MOST:
        raise KernelError(f"bits must be a whole number from {FEWEST} to {MOST}, not {shown(bits)}")
    if rounding not in ROUNDINGS:
        raise KernelError(f"rounding must be 'nearest' or 'stochastic', not {shown(rounding)}")
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if not TORCH[0] <= release <= TORCH[1]:
        first, last = (".".join(map(str, one)) for one in TORCH)
        raise KernelError(
            f"kernels.compression works with torch {first} to {last}, not {torch.__version__}; "
            'in eager mode, kernels.convert(model, "approx-backprop", bits=4) works with all'
        )
    return {"custom_partitioner_fn": CodedPartitioner(Settings(bits, rounding))}


class CodedPartitioner(private.CustomPartitionerFn):
    """Cuts the graph of forward and backward as PyTorch does, then codes what crosses.

    Attributes
    ----------
    graphs
        What crossed in each graph that was compiled in this process; one that came from Inductor's cache is not here.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.graphs: list[Graph] = []

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **arguments: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The forward and the backward graph."""
        forward, backward = private.partition(gm, joint_inputs, **arguments)
        static = frozenset(arguments.get("static_lifetime_input_indices") or ())
        rows = crossings(forward, backward, arguments["num_fwd_outputs"], static, self.settings)
        self.graphs.append(Graph(tuple(rows)))
        return forward, backward

    def uuid(self) -> str:
        """What Inductor's caches know this partitioner by: its settings, and the text of this package."""
        return f"kernels.compression {_text()} {self.settings}"

    def __deepcopy__(self, memo: object) -> Self:
        """Itself: Inductor copies its options, and the report has to find the graphs."""
        return self


@cache
def _text() -> str:
    files = [*sorted(Path(__file__).parent.glob("*.py")), Path(arithmetic.__file__)]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
