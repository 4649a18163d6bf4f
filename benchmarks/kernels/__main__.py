"""python -m benchmarks.kernels: times of the kernels against stock eager, torch.compile and a copy.

GELU and SiLU, forward, backward and both, by every method. The tests say whether kernels are right: `benchmarks.run`
and `benchmarks.gpu` run them before. On a GPU: medians of 40 rounds in which all rivals take turns, between CUDA
events, the L2 cache flushed. On a CPU: what the reference costs against stock eager, each with one thread (with
several, times are those of whatever else runs there). Whole blocks are in `benchmarks.rivals`.

Rows, as JSON lines, in benchmarks/results/<device>/kernels-time.jsonl, whole or not at all; --quick writes to --out
only. what: "gelu". implementation: a method, or "method / rival" in ratios, which are taken round by round. mode:
forward, backward, both. unit:

    s                of the device
    ratio of times   to eager
    ratio of GB/s    to a copy that moves as many bytes as eager; of the bytes that must be read and written
"""

from actfit.coefficients import command
from benchmarks import parsers

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("kernels", lambda: parsers.kernels(__doc__).parse_args())

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from actfit import KernelError, backend
from benchmarks.clock import CpuClock, GpuClock, clock_of, origin, ratio_rows, rounds
from benchmarks.kernels import cases
from benchmarks.kernels.cases import DTYPES, METHODS, MODES
from benchmarks.options import device as device_of
from benchmarks.options import names, output, torch_threads, whole
from benchmarks.options import runs as runs_of
from benchmarks.rows import Row, described_rows, record, summary

PROG = "kernels"
SIZES = {"cuda": range(12, 29, 2), "cpu": range(12, 23, 2)}  # exponents of 2
QUICK_SIZES = {"cuda": (16, 26), "cpu": (10, 12)}
CAP = {"cuda": 1 << 34, "cpu": 1 << 22}  # elements
RUNS = {"cuda": 40, "cpu": 10}
QUICK_RUNS = {"cuda": 10, "cpu": 3}


@dataclass(frozen=True)
class Workload:
    """What is measured, on what, how often."""

    functions: list[str]
    dtypes: list[str]
    methods: list[str]
    sizes: list[int]
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
        functions=names("fn", options.fn, parsers.KERNEL_FUNCTIONS),
        dtypes=names("dtypes", options.dtypes, tuple(DTYPES)),
        methods=["eager", *(name for name in asked if name != "eager")],
        sizes=sizes,
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


def measure(work: Workload, left_out: list[str]) -> Iterator[list[Row]]:
    """Yield the rows of each function, dtype and size; what memory does not hold is said and put into `left_out`."""
    clock, where = clock_of(work.device), origin(work.device)
    for function, dtype, n in product(work.functions, work.dtypes, work.sizes):
        try:
            yield measured(work, clock, {"what": function, "dtype": dtype, "size": {"n": n}, **where})
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            left_out.append(f"{function} {dtype} {n}")
            command.say(PROG, f"{left_out[-1]}: left out, memory does not hold it")


def measured(work: Workload, clock: GpuClock | CpuClock, base: dict[str, Any]) -> list[Row]:
    """Rows of forward, backward and both for normally distributed elements of the size in `base`."""
    torch.compiler.reset()  # else torch's limit of recompilations makes it run eager
    function, dtype, n = base["what"], base["dtype"], base["size"]["n"]
    x, grad = (torch.randn(n, device=work.device, dtype=DTYPES[dtype]) for _ in range(2))
    x.requires_grad_()
    run, rows = {name: cases.make(function, name) for name in work.methods}, []
    for mode in MODES:
        moved = {name: n * cases.moved(function, name, dtype, mode) for name in work.methods}
        calls = {name: cases.call(mode, run[name], x, grad) for name in work.methods}
        calls["copy"] = cases.copy(int(moved["eager"]), work.device)
        times = rounds(clock, calls, work.runs)
        of_copy = times.pop("copy")
        rows += ratio_rows({**base, "mode": mode}, times, "eager")
        for name, seconds in times.items():
            share = moved[name] / moved["eager"]
            shares = [share * copy / own for own, copy in zip(seconds, of_copy, strict=True)]
            rows.append(
                Row(implementation=f"{name} / copy", mode=mode, unit="ratio of GB/s", **base, **summary(shares))
            )
    return rows


def described(rows: Sequence[Row]) -> str:
    """The result in a line, shown while the rest runs."""
    both = [row for row in rows if row.mode == "both" and row.unit == "ratio of times"]
    ratios = [f"{row.implementation} {row.median:.2f}" for row in both]
    return f"{rows[0].what}, {rows[0].dtype}, {rows[0].size['n']}: {', '.join(ratios)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.kernels(__doc__).parse_args(arguments)
    work = workload(options)
    torch.manual_seed(0)
    left_out: list[str] = []
    with torch_threads(1) if work.device.type == "cpu" else nullcontext():
        rows = described_rows(measure(work, left_out), described)
    record([("kernels-time", rows)], work.out, options.quick)
    return command.BAD if left_out else command.GOOD


if __name__ == "__main__":
    sys.exit(command.run(PROG, main, (KernelError,)))
