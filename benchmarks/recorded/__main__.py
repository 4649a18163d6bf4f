"""python -m benchmarks.recorded: by how much tables of a network's own numbers lessen the error of its gradient.

A small GPT on a text and a ViT on digits, those of `benchmarks.training`, both with GELU, are trained by stock. After
0, 100 and all steps it is recorded what each activation is given, and tables of 1 to 4 bits are fitted to it. Each
table is then used at each of the three stages, so that it also meets inputs that have moved since. Rows, as JSON lines,
in benchmarks/results/<device>/recorded.jsonl:

    recorded gradient  "of the gradient": |a - g| / |g| of a batch, g being stock's gradient of all weights together and
                       a the one by tables; median over batches and seeds. implementation: uniform, the tables that come
                       with this package; normal, tables for N(0, 1); recorded, a table for each activation; level,
                       those with their levels moved so that the error of f' has no part proportional to x; together,
                       one for all, of their summed histograms. mode: the task. size: bits; used, the steps done where
                       the table is used; recorded, those done where its inputs were recorded
    recorded derivative  the error d of f' over the inputs where the tables are used: "rms", its root mean square, and
                       "slope", mean x d / mean x^2
    recorded inputs    "rms": the root mean square of what all activations are given. size: used

Some twenty minutes on two cores. --quick writes to --out only.
"""

from benchmarks import parsers
from coefficients import command

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("recorded", lambda: parsers.recorded(__doc__).parse_args())

import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.clock import origin
from benchmarks.options import names, output, whole
from benchmarks.recorded import study
from benchmarks.recorded.study import Stage, Tables
from benchmarks.rows import Row, record, summary
from benchmarks.training import jobs
from benchmarks.training.runs import Settings

PROG = "recorded"
BITS = (1, 2, 3, 4)
SEEDS, MOST_SEEDS = 2, 100

Place = tuple[str, str, str, tuple[tuple[str, int], ...]]  # what, unit, implementation, size: a row without its seeds


def sources(
    stages: Sequence[Stage], used: Stage, bits: int, folder: Path
) -> Iterator[tuple[str, dict[str, int], Tables | None]]:
    """Yield implementation, the steps done when inputs were recorded, and the tables."""
    yield "uniform", {}, None
    yield "normal", {}, {"": study.usual_table(bits, folder)}
    for stage in stages:
        yield "recorded", {"recorded": stage.steps}, study.recorded_tables(stage, bits, folder)
        yield "level", {"recorded": stage.steps}, study.recorded_tables(stage, bits, folder, level=True)
        if stage is used:
            yield "together", {"recorded": stage.steps}, {"": study.common_table(stage, bits, folder)}


def of_seed(settings: Settings, seed: int, widths: Sequence[int]) -> Iterator[tuple[Place, list[float]]]:
    """Yield the numbers of one training."""
    stages = study.stages(settings, seed)
    with tempfile.TemporaryDirectory() as folder:
        for stage in stages:
            used = {"used": stage.steps}
            yield ("recorded inputs", "rms", "stock", tuple(used.items())), [stage.size()]
            exact = study.stock_gradients(settings, stage, seed)
            for bits in widths:
                for name, when, tables in sources(stages, stage, bits, Path(folder)):
                    size = tuple({"bits": bits, **used, **when}.items())
                    rms, slope = study.derivative_errors(stage, bits, tables)
                    yield ("recorded derivative", "rms", name, size), [rms]
                    yield ("recorded derivative", "slope", name, size), [slope]
                    errors = study.errors(settings, stage, bits, tables, exact, seed)
                    yield ("recorded gradient", "of the gradient", name, size), errors


def rows(settings: Settings, seeds: int, widths: Sequence[int]) -> list[Row]:
    """The rows of a task."""
    values: dict[Place, list[float]] = defaultdict(list)
    for seed in tqdm(range(seeds), desc=settings.task, unit="seed", disable=None):
        for place, numbers in of_seed(settings, seed, widths):
            values[place] += numbers
    where = origin(torch.device(settings.device))
    return [
        Row(
            what=what,
            implementation=name,
            mode=settings.task,
            size=dict(size),
            dtype="float32",
            unit=unit,
            **summary(numbers),  # type: ignore[arg-type]
            **where,
        )
        for (what, unit, name, size), numbers in values.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.recorded(__doc__).parse_args(arguments)
    tasks = names("task", options.task, parsers.RECORDED_TASKS)
    usual = 1 if options.quick else SEEDS
    seeds = usual if options.seeds is None else whole("seeds", options.seeds, MOST_SEEDS)
    out = output(options.out)
    size, widths = ("quick", BITS[1:2]) if options.quick else ("small", BITS)
    measured: list[Row] = []
    for task in tasks:
        measured += rows(jobs.settings(task, size, "cpu", options.threads, False), seeds, widths)
    record([("recorded", measured)], out, options.quick, partial=options.task is not None)
    return command.GOOD


if __name__ == "__main__":
    sys.exit(command.run(PROG, main))
