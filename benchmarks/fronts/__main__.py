"""python -m benchmarks.fronts: the gradient's error against bytes kept, by compress and by the generic hook.

Small networks of twelve kinds with random weights, in float32 on a CPU; nothing was tuned on five of them. The hook
codes whatever autograd saves, as GACT does it, in groups of neighbours; parts of storages by themselves, inputs and
integers not. All is counted, nothing timed. Rows, as JSON lines, in benchmarks/results/<device>/fronts.jsonl, whole or
not at all; --quick writes to --out only. With --models, rows of the others stay as they are. what: the network;
implementation: the way. Kinds of rows, by mode; medians over seeds, with the least and largest as quantiles:

    each         B kept by the allocator after forward, with the loss; error of the gradient of all weights, relative
                 to its length
    same bits    ratio of bytes and of errors of compress to the hook with as many bits and groups of 64
    same bytes   ratio of errors of compress to the hook that keeps as many bytes, by the better of groups of 64 and
                 128; between two widths the logarithm of the hook's error is linear in bytes. No row where compress
                 keeps fewer bytes than the hook with 2 bits
"""

from benchmarks import parsers
from coefficients import command

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("fronts", lambda: parsers.fronts(__doc__).parse_args())

import gc
import os
import sys
from collections.abc import Sequence
from statistics import median

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler would write two lines a step

from benchmarks.clock import origin
from benchmarks.compression.models import Size
from benchmarks.fronts import errors
from benchmarks.fronts.nets import SMALL, TINY, build
from benchmarks.options import names, output, torch_threads, whole
from benchmarks.planning.nets import CPU
from benchmarks.rows import Row, described_rows, record
from kernels import KernelError

PROG = "fronts"
QUICK_SEEDS, MOST_SEEDS = 1, 100


def measure(name: str, size: Size, seeds: int) -> list[Row]:
    """The rows of a network, over all seeds."""
    values_of: dict[tuple[str, str, str], list[float]] = {}
    for seed in range(seeds):
        for key, value in errors.of_seed(build(name, size, seed)).items():
            values_of.setdefault(key, []).append(value)
        gc.collect()
    base = {"what": name, "size": size._asdict(), "dtype": "float32", **origin(CPU)}
    return [
        Row(
            mode=mode,
            implementation=way,
            unit=unit,
            median=median(values),
            quantiles=(min(values), max(values)),
            runs=len(values),
            **base,
        )
        for (mode, way, unit), values in values_of.items()
    ]


def described(rows: Sequence[Row]) -> str:
    """The result in a line, shown while the rest runs."""
    parts = [
        f"{row.implementation} {row.median:.2f}"
        for row in rows
        if row.mode == errors.SAME_BITS and row.unit == errors.ERROR_RATIO
    ]
    return f"{rows[0].what}: error by {', '.join(parts)} times the hook's"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.fronts(__doc__).parse_args(arguments)
    sizes = TINY if options.quick else SMALL
    models = names("models", options.models, tuple(sizes))
    usual = QUICK_SEEDS if options.quick else parsers.FRONT_SEEDS
    seeds = usual if options.seeds is None else whole("seeds", options.seeds, MOST_SEEDS)
    out = output(options.out)
    with torch_threads(1):
        rows = described_rows((measure(name, sizes[name], seeds) for name in models), described)
    record([(PROG, rows)], out, options.quick, partial=bool(options.models))
    return command.GOOD


if __name__ == "__main__":
    sys.exit(command.run(PROG, main, (KernelError,)))
