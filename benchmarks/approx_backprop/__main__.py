"""python -m benchmarks.approx_backprop: what approximate backprop keeps, how far its gradients are off, what it costs.

Chakrabarti and Moseley's method (2019), by our robust codes and by the paper's own, beside stock torch, exact numbers
in as few tensors (fused), and torch's checkpoint of each block. Four kinds of rows, as JSON lines, each in a file of
its own in benchmarks/results/<device>/, whole or not at all; --quick writes to --out only, where all are in one.
implementation says which way of keeping it is:

    approx-backprop-layers   what: "kept" in B and in units of the input, and "error of" a gradient against float64,
                             over seeds; mode: the layer
    approx-backprop-models   what: "kept by a model", in B; mode: the model
    approx-backprop-batches  what: "largest batch" of the paper's ResNets within so many bytes, "each sample" and
                             "besides" of the line it lies on; mode: counted on fake tensors, or run on a GPU, where
                             the time of a sample comes besides
    approx-backprop-times    forward and backward, in rounds in which all take turns. what: the net; implementation:
                             the way, in s, or "way / stock", a ratio; mode: eager or, on a GPU, compiled

Bytes are counted on fake tensors as CUDA keeps them, and those of what is compiled as it runs on the CPU.
"""

from benchmarks import parsers
from coefficients import command

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("approx_backprop", lambda: parsers.approx_backprop(__doc__).parse_args())

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.approx_backprop import batches as largest_batches
from benchmarks.approx_backprop import layers as single_layers
from benchmarks.approx_backprop import models
from benchmarks.approx_backprop import times as timed
from benchmarks.clock import origin
from benchmarks.options import device as device_of
from benchmarks.options import names, output, torch_threads, whole
from benchmarks.options import runs as runs_of
from benchmarks.rows import Row, described_rows, record
from kernels import KernelError

PROG = "approx_backprop"
KINDS = parsers.APPROX_KINDS
GIB = 2**30
RUNS, QUICK_RUNS = parsers.APPROX_RUNS, 2
QUICK_MODELS, QUICK_NETS, QUICK_WAYS = ("ResNet-20, 8×8",), ("164",), ("4 bits",)
MOST_MEMORY = 10_000  # GiB


@dataclass(frozen=True)
class Workload:
    """What is measured, on what, how often."""

    kinds: list[str]
    device: torch.device
    runs: int
    memory: int
    quick: bool
    out: Path | None


def workload(options: argparse.Namespace) -> Workload:
    """The options, checked; raises Misuse."""
    device = device_of(options.device)
    return Workload(
        kinds=names("what", options.what, KINDS),
        device=device,
        runs=runs_of(options.runs, QUICK_RUNS if options.quick else RUNS),
        memory=whole("memory", options.memory, MOST_MEMORY) * GIB,
        quick=options.quick,
        out=output(options.out),
    )


def measure(kind: str, work: Workload) -> list[Row]:
    """The rows of one of KINDS; slow ones are described as soon as they are measured."""
    where = origin(work.device)
    if kind == "layers":
        return single_layers.layers(
            tuple(single_layers.PIECES), work.device, where, 2 if work.quick else single_layers.SEEDS
        )
    if kind == "models":
        return models.models(QUICK_MODELS if work.quick else models.NAMES, origin(torch.device("cpu")))
    if kind == "batches":
        nets, ways = (QUICK_NETS, QUICK_WAYS) if work.quick else (tuple(largest_batches.NETS), largest_batches.WAYS)
        return described_rows(
            largest_batches.batches(nets, work.memory, work.device, where, ways), largest_batches.described
        )
    nets = tuple(timed.NETS[work.device.type])
    taken = timed.times(nets[:1] if work.quick else nets, work.runs, work.device, where)
    return described_rows(taken, timed.described)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.approx_backprop(__doc__).parse_args(arguments)
    work = workload(options)
    with torch_threads(1):
        record(((f"approx-backprop-{kind}", measure(kind, work)) for kind in work.kinds), work.out, work.quick)
    return command.GOOD


if __name__ == "__main__":
    sys.exit(command.run(PROG, main, (KernelError,)))
