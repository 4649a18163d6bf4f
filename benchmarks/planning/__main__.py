"""python -m benchmarks.planning: plans for a budget of memory beside uniform bits, GACT's rule and computing again.

Small networks of seven kinds in float32. Rows, as JSON lines, in benchmarks/results/<device>/planning.jsonl, whole or
not at all; --quick writes to --out only. With --models or --what, rows of the others stay as they are. what: the
network; implementation: the way. Kinds of rows, by mode:

    N × less     by --what errors: the gradient's error where N times less is kept for backward than stock keeps, on a
                 batch that nothing was chosen by; medians over seeds, with the least and largest as quantiles
    N × less, compiled
                 by --what compiled: likewise, of the network under torch.compile, where other tensors are saved
    accounting   by --what bytes: B kept and at the peak, on fake tensors, with a plan for a peak; s that planning took
    allocator    by --what times: B kept and at the peak by the process's allocator, with a plan for a fifth of stock's
    time         by --what times: s of forward and backward, in rounds in which all take turns, and ratios to stock's
"""

from benchmarks import parsers
from coefficients import command

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("planning", lambda: parsers.planning(__doc__).parse_args())

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler would write two lines a step

from benchmarks.clock import origin, ratio_rows
from benchmarks.compression.models import Size
from benchmarks.options import can_compile, names, output, torch_threads, whole
from benchmarks.options import runs as runs_of
from benchmarks.planning import errors, steps
from benchmarks.planning.nets import CPU, SMALL, TIMED, TINY, build
from benchmarks.rows import Row, described_rows, record, summary
from kernels import KernelError
from kernels.planning.make import kind_of

PROG = "planning"
QUICK_RUNS, QUICK_SEEDS, MOST_SEEDS = 2, 1, 100
ACCOUNTING, ALLOCATOR, TIME = "accounting", "allocator", "time"


class Bench:
    """The sizes, seeds and rounds that are measured."""

    def __init__(self, sizes: dict[str, Size], timed: dict[str, Size], seeds: int, runs: int) -> None:
        self.sizes, self.timed, self.seeds, self.runs = sizes, timed, seeds, runs

    def errors(self, name: str, compiled: bool = False) -> list[Row]:
        """Rows of the errors at equal bytes, over all seeds."""
        size = self.sizes[name]
        case = build(name, size, 0)
        task = kind_of(compiled)(case.module, case.batches[0])
        step, stock = task.step(()), task.stock.kept
        values_of: dict[tuple[str, str, str], list[float]] = {}
        for seed in range(self.seeds):
            for key, value in errors.of_seed(build(name, size, seed), step, stock, compiled).items():
                values_of.setdefault(key, []).append(value)
            gc.collect()
        base = _base(name, size)
        return [
            Row(mode=mode, implementation=way, unit=unit, **base, **summary(values))
            for (mode, way, unit), values in values_of.items()
        ]

    def bytes(self, name: str) -> list[Row]:
        """Rows of bytes by accounting."""
        size = self.sizes[name]
        return _rows(_base(name, size), ACCOUNTING, steps.counted(name, size))

    def times(self, name: str) -> list[Row]:
        """Rows of bytes by the allocator, and of times."""
        size, base = self.timed[name], _base(name, self.timed[name])
        ways = steps.TIMED_WAYS if can_compile(CPU) else steps.TIMED_WAYS[:-1]
        plan = steps.plan_of(name, size)
        made = {way: steps.loss(name, size, way, plan) for way in ways}
        rows = _rows(base, ALLOCATOR, steps.allocated(made, plan))
        return rows + ratio_rows({**base, "mode": TIME}, steps.timed(made, self.runs), steps.STOCK)


def _base(name: str, size: Size) -> dict[str, Any]:
    return {"what": name, "size": size._asdict(), "dtype": "float32", **origin(CPU)}


def _rows(base: dict[str, Any], mode: str, values: steps.Values) -> list[Row]:
    return [
        Row(mode=mode, implementation=way, unit=unit, **base, **summary([float(value)]))
        for (way, unit), value in values.items()
    ]


def described(rows: Sequence[Row]) -> str:
    """The result in a line, shown while the rest runs."""
    name = rows[0].what
    if rows[0].mode == ACCOUNTING:
        peaks = (f"{row.implementation} {row.median / 2**20:.2f}" for row in rows if row.unit == steps.PEAK)
        return f"{name}: MiB at the peak by accounting: {', '.join(peaks)}"
    if rows[0].mode == ALLOCATOR:
        parts = [f"{row.implementation} {row.median:.2f}" for row in rows if row.unit == "ratio of times"]
        return f"{name}: times {', '.join(parts)}"
    between = f"{errors.BETWEEN} / {errors.PLAN}"
    parts = [f"{row.mode} {row.median:.2f}" for row in rows if row.implementation == between]
    return f"{name}: error by {between}: {', '.join(parts)}"


def _measured(bench: Bench, kinds: Sequence[str], models: Sequence[str]) -> Iterator[list[Row]]:
    measures = {
        "bytes": bench.bytes,
        "errors": bench.errors,
        "compiled": partial(bench.errors, compiled=True),
        "times": bench.times,
    }
    for kind, measure in measures.items():
        for name in models:
            if kind in kinds and name in (bench.timed if kind == "times" else bench.sizes):
                yield measure(name)
                gc.collect()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.planning(__doc__).parse_args(arguments)
    kinds = names("what", options.what, parsers.PLANNING_WHATS)
    models = names("models", options.models, tuple(TINY) if options.quick else parsers.PLANNING_MODELS)
    usual = QUICK_SEEDS if options.quick else parsers.PLANNING_SEEDS
    seeds = usual if options.seeds is None else whole("seeds", options.seeds, MOST_SEEDS)
    runs = runs_of(options.runs, QUICK_RUNS if options.quick else parsers.PLANNING_RUNS)
    out = output(options.out)
    bench = Bench(TINY, TINY, seeds, runs) if options.quick else Bench(SMALL, TIMED, seeds, runs)
    with torch_threads(1):
        rows = described_rows(_measured(bench, kinds, models), described)
    record([(PROG, rows)], out, options.quick, partial=bool(options.models or options.what))
    return command.GOOD


if __name__ == "__main__":
    sys.exit(command.run(PROG, main, (KernelError,)))
