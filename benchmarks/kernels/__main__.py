"""python -m benchmarks.kernels: time and memory of the kernels against stock eager, torch.compile and a copy.

GELU and SiLU, forward, backward and both, by every method; and in Linear + activation and Linear-activation-Linear,
forward and backward. The tests say whether kernels are right: `benchmarks.run` and `benchmarks.gpu` run them before.
On a GPU: medians of 40 rounds in which all rivals take turns, between CUDA events, the L2
cache flushed; bytes that forward leaves. On a CPU: what the reference costs against stock eager,
each with one thread (with several, times are those of whatever else runs there).

Rows, as JSON lines, in benchmarks/results/<device>/kernels-time.jsonl, whole or not at all; --quick writes to --out
only. what: "gelu", "gelu linear", "gelu mlp". implementation: a method, or "method / rival" in ratios, which are taken
round by round. mode: forward, backward, both, kept. unit:

    s, host s        of the device, and of the host to give the call out (on a CPU they are the same)
    GB/s             bytes that must be read and written, for that time; the copy moves as many as eager
    ratio of times   to eager
    ratio of GB/s    to the copy
    B                mode kept: what the allocator has given out after forward and had not before
    asked B          of it, what it was asked for
    expected B       by what each method saves; of a layer by torch.compile, which chooses itself, there is none
"""

from actfit.coefficients import command
from benchmarks import parsers

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("kernels", lambda: parsers.kernels(__doc__).parse_args())

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from actfit import KernelError, backend
from benchmarks.kernels import table
from benchmarks.kernels.cases import ACT_LINEAR, DTYPES, METHODS, MODULES
from benchmarks.kernels.runs import Bench
from benchmarks.options import device as device_of
from benchmarks.options import names, output, torch_threads, whole
from benchmarks.options import runs as runs_of
from benchmarks.rows import Row, record

PROG = "kernels"
WHATS = parsers.KERNEL_WHATS
SIZES = {"cuda": range(12, 29, 2), "cpu": range(12, 23, 2)}  # exponents of 2
QUICK_SIZES = {"cuda": (16, 26), "cpu": (10, 12)}
CAP = {"cuda": 1 << 34, "cpu": 1 << 22}  # elements
RUNS = {"cuda": 40, "cpu": 10}
QUICK_RUNS = {"cuda": 10, "cpu": 3}
LAYERS = {"cuda": ((8192, 1024), (8192, 4096)), "cpu": ((512, 256),)}  # tokens and width
QUICK_LAYERS = {"cuda": ((8192, 1024),), "cpu": ((64, 32),)}


@dataclass(frozen=True)
class Workload:
    """What is measured, on what, how often."""

    functions: list[str]
    dtypes: list[str]
    methods: list[str]
    kinds: list[str]
    sizes: list[int]
    layers: tuple[tuple[int, int], ...]
    device: torch.device
    runs: int
    out: Path | None


def workload(options: argparse.Namespace) -> Workload:
    """The options, checked; raises Misuse."""
    kind = _kind(options.device)
    exponents = (QUICK_SIZES if options.quick else SIZES)[kind]
    sizes = (
        [1 << k for k in exponents]
        if options.sizes is None
        else [whole("sizes", n, CAP[kind]) for n in dict.fromkeys(options.sizes.split(","))]
    )
    # On a CPU the question is the reference's cost over eager's; --methods can add torch.compile.
    methods = [name for name in METHODS if kind == "cuda" or name != "compile"]
    asked = names("methods", options.methods, METHODS) if options.methods is not None else methods
    return Workload(
        functions=names("fn", options.fn, tuple(MODULES)),
        dtypes=names("dtypes", options.dtypes, tuple(DTYPES)),
        methods=["eager", *(name for name in asked if name != "eager")],
        kinds=names("what", options.what, WHATS),
        sizes=sizes,
        layers=(QUICK_LAYERS if options.quick else LAYERS)[kind],
        device=torch.device(kind),
        runs=runs_of(options.runs, (QUICK_RUNS if options.quick else RUNS)[kind]),
        out=output(options.out),
    )


def _kind(device: str | None) -> str:
    kind = device_of(device).type
    if kind == "cpu" and backend("cpu") != "torch":
        raise command.Misuse("TRITON_INTERPRET must not be set: what the interpreter takes says nothing; unset it")
    if kind == "cuda" and backend("cuda") != "triton":
        raise command.Misuse("the kernels need Triton (Linux): pip install triton")
    return kind


def measure(work: Workload) -> tuple[list[Row], bool]:
    """All rows, and whether everything was measured; prints each table as soon as it is measured."""
    bench, rows, good = Bench(work.device, work.runs), [], True
    for function in work.functions:
        for dtype in work.dtypes:
            for subject in _subjects(work):
                try:
                    made = _measured(bench, subject, function, dtype, work.methods)
                except torch.OutOfMemoryError:
                    torch.cuda.empty_cache()
                    command.say(PROG, f"{function} {dtype} {subject}: left out, memory does not hold it")
                    good = False
                    continue
                print(table.block(made), end="\n\n", flush=True)
                rows += made
    return rows, good


def _subjects(work: Workload) -> list[tuple[Any, ...]]:
    """What to measure, and its size: elements, or tokens and width."""
    elements = [("activation", n) for n in work.sizes if "activation" in work.kinds]
    return elements + [(what, *shape) for what in table.LAYERS if what in work.kinds for shape in work.layers]


def _measured(bench: Bench, subject: tuple[Any, ...], function: str, dtype: str, methods: list[str]) -> list[Row]:
    what, *size = subject
    methods = [name for name in methods if name != ACT_LINEAR or what == "mlp"]
    if what == "activation":
        return bench.activation(function, dtype, *size, methods)
    return bench.layer(what, function, dtype, *size, methods)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.kernels(__doc__).parse_args(arguments)
    work = workload(options)
    torch.manual_seed(0)
    with torch_threads(1) if work.device.type == "cpu" else nullcontext():
        rows, good = measure(work)
    print("Times stock eager's time:", *table.factors(rows), sep="\n")
    record([("kernels-time", rows)] if rows else [], work.out, options.quick)
    return command.GOOD if good else command.BAD


if __name__ == "__main__":
    sys.exit(command.run(PROG, main, (KernelError,)))
