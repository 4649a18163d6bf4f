"""python -m benchmarks.forward_ad: what nested forward AD saves, and what it costs, against plain eager and others.

Written-out activations run by plain eager; by nested forward AD, in its context; with the chain checkpointed by torch,
which keeps its input and computes it again; and compiled by torch. Three kinds of rows, as JSON lines, each in a file
of its own in benchmarks/results/<device>/, whole or not at all; --quick writes to --out only, where all are in one:

    forward-ad-chains   what: "kept by linear – chain – linear" and with a convolution and BatchNorm; implementation:
                        the chain; mode: who runs it; unit: units, of the tensor that the chain is given
    forward-ad-models   what: "kept by a model"; implementation: the model; mode: who runs it; unit: B
    forward-ad-times    forward and backward, in rounds in which all take turns. what: the chain and the block;
                        implementation: who runs it, in s; or "nested / plain", a ratio of medians whose quantiles are
                        those of the rounds' ratios. mode: threads, or "device" on a GPU, where the allocator's bytes
                        come besides: kept after forward, the result too; and the peak during both passes

Bytes are counted on fake tensors and, compiled, by torch's partitioner without its code generator, on the CPU. Times
on a CPU are of float32, on a GPU of bfloat16 too. On a CPU with one thread: several wait for each other, and where
others use the cores, that is what is timed. What is compiled gets no time where there is no C++ compiler.
"""

from benchmarks import parsers
from coefficients import command

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("forward_ad", lambda: parsers.forward_ad(__doc__).parse_args())

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.clock import origin
from benchmarks.forward_ad import bytes as byte_counts
from benchmarks.forward_ad import times as timed
from benchmarks.forward_ad.cases import CHAINS, METHODS
from benchmarks.options import can_compile, names, output, whole
from benchmarks.options import device as device_of
from benchmarks.options import runs as runs_of
from benchmarks.rows import Row, described_rows, record
from kernels import KernelError

PROG = "forward_ad"
KINDS = parsers.FORWARD_AD_KINDS
DTYPES = {"cuda": ("float32", "bfloat16"), "cpu": ("float32",)}
SIZES = {"cuda": (1 << 17, 1 << 21, 1 << 23, 1 << 26), "cpu": (1 << 17, 1 << 21, 1 << 23)}  # elements of a chain alone
MOST_LAYERS = {
    "cuda": 1 << 26,
    "cpu": 1 << 21,
}  # of a chain between layers, whose matrix products take seconds on a CPU
QUICK_SIZES = (1 << 16,)  # nested forward AD leaves smaller tensors alone
QUICK_CHAINS, QUICK_MODELS = ("mish", "relu"), ("ResNet, mish",)
REPEATS, QUICK_REPEATS = parsers.FORWARD_AD_RUNS, 3
MOST_THREADS = 256


@dataclass(frozen=True)
class Workload:
    """What is measured, on what, how often."""

    kinds: list[str]
    device: torch.device
    repeats: int
    threads: list[int]
    methods: list[str]  # timed
    quick: bool
    out: Path | None


def workload(options: argparse.Namespace) -> Workload:
    """The options, checked; raises Misuse."""
    device = device_of(options.device)
    compiles = can_compile(device)
    return Workload(
        kinds=names("what", options.what, KINDS),
        device=device,
        repeats=runs_of(options.runs, QUICK_REPEATS if options.quick else REPEATS),
        threads=[whole("threads", word, MOST_THREADS) for word in dict.fromkeys(options.threads.split(","))],
        methods=[name for name in METHODS if compiles or name != "compiled"],
        quick=options.quick,
        out=output(options.out),
    )


def measure(kind: str, work: Workload) -> list[Row]:
    """The rows of one of KINDS; times are described as soon as they are measured."""
    if kind == "chains":
        return byte_counts.chains(QUICK_CHAINS if work.quick else tuple(CHAINS), origin(torch.device("cpu")))
    if kind == "models":
        return byte_counts.models(
            QUICK_MODELS if work.quick else tuple(byte_counts.MODELS), origin(torch.device("cpu"))
        )
    if "compiled" not in work.methods:
        command.say(PROG, "what is compiled gets no time: there is no C++ compiler")
    device = work.device
    runs = [
        timed.Run(block, chain, dtype, elements, device)
        for dtype in DTYPES[device.type]
        for block in timed.TIMED
        for chain in timed.WRITTEN
        for elements in (QUICK_SIZES if work.quick else SIZES[device.type])
        if block == "chain" or elements <= MOST_LAYERS[device.type]
    ]
    return described_rows(timed.times(runs, work.repeats, work.threads, work.methods), timed.described)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.forward_ad(__doc__).parse_args(arguments)
    work = workload(options)
    record(((f"forward-ad-{kind}", measure(kind, work)) for kind in work.kinds), work.out, work.quick)
    return command.GOOD


if __name__ == "__main__":
    sys.exit(command.run(PROG, main, (KernelError,)))
