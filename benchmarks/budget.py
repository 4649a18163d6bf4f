"""python -m benchmarks.budget: well-known models in a quarter of the memory that a step takes, and what it costs.

`make_plan` is asked for the least error in a quarter of the peak, as `actfit memory --goal error` does: bytes on fake
tensors, as a CPU runs the model; errors on a narrow copy with random weights. Beside it, the model as it is, with each
block checkpointed, and with the same bits everywhere. Models that a CPU can train are also timed. Rows, as JSON lines,
in benchmarks/results/<device>/budget.jsonl, whole or not at all, and the front of one model beside them. Kinds of rows,
by mode:

    step     B kept for backward and at the peak; ratio of products; relative error, measured of the plan and of uniform
             bits that fit, else predicted; s that planning took
    time     s of forward and backward, in rounds in which all take turns, and ratios to the model as it is
"""

from actfit.coefficients import command
from benchmarks import parsers

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("budget", lambda: parsers.budget(__doc__).parse_args())

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensorMode

from actfit import KernelError, compress
from actfit.kernels.engine.elements import dtype_name
from actfit.kernels.memory import zoo
from actfit.kernels.memory.saved import size
from actfit.kernels.memory.storages import tensors
from actfit.kernels.planning.batches import call_of
from actfit.kernels.planning.fronts import Front, front_of
from actfit.kernels.planning.make import kind_of
from actfit.kernels.planning.plan import Plan
from actfit.kernels.planning.planner import plan_of
from actfit.kernels.planning.task import Task
from benchmarks.baselines.checkpointed import checkpoint_each
from benchmarks.clock import clock_of, origin, ratio_rows, rounds
from benchmarks.gpu.ways import blocks, loss
from benchmarks.options import names, output, torch_threads
from benchmarks.options import runs as runs_of
from benchmarks.pages import place, read, spread, table
from benchmarks.rows import RESULTS, Row, described_rows, record, summary

PROG, CPU = "budget", torch.device("cpu")
SHARE = 4  # the peak as it is, over the budget
BELOW = 0.8  # of the peak with each block checkpointed: another budget, of DRAWN
STOCK, CHECKPOINT, PLAN, LOWER = "stock", "checkpoint", "plan", "plan below checkpoint"
BUDGET, UNIFORM = "budget", "uniform"
KEPT, PEAK, ERROR, BITS, SECONDS = "B kept", "B at the peak", "relative error", "bits", "s to plan"
AGAIN, WORK = "blocks computed again", "ratio of products"
STEP, TIME = "step", "time"
NAMED = {"bert": "BERT", "vit": "ViT", "llama": "Llama 2 (7B)"}
TIMED = ("bert", "vit")
DRAWN, PICTURE = "llama", "budget-front.svg"
COUNT, QUICK_COUNT = 12, 3  # of points of the front
HEAD = (
    *("", "peak of a step", "budget", "plan: error", "the same bits everywhere", "plan: products", "plan: time"),
    *("checkpoint: peak", "checkpoint: products", "checkpoint: time"),
)


def task_of(name: str) -> Task:
    """What plans of a model are made with."""
    torch.manual_seed(0)
    copy, args, kwargs = zoo.narrow(name, dtype=torch.float32)
    stand_in = copy, kwargs or args
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, args, kwargs = zoo.build(name)
    return kind_of(False)(model, call_of(kwargs or args), stand_in=stand_in)


def _base(task: Task, name: str, mode: str) -> dict[str, Any]:
    first = next(iter(tensors(task.call)))
    dtype = dtype_name(next(task.model.parameters()).dtype)
    return {"what": name, "mode": mode, "size": {"batch": first.shape[0], "length": first.shape[-1]}, "dtype": dtype}


def steps(base: dict[str, Any], plan: Plan, front: Front, others: dict[str, Plan], seconds: float) -> list[Row]:
    """Rows of bytes and errors; `others`: LOWER, if there is such a plan."""
    values: dict[tuple[str, str], float] = {
        (BUDGET, PEAK): (plan.stock.peak or 0) // SHARE,
        (UNIFORM, BITS): plan.uniform,
        (UNIFORM, ERROR): plan.uniform_error,
        (PLAN, SECONDS): seconds,
    }
    for point in front.named:
        values[point.name, KEPT], values[point.name, PEAK] = point.bytes.kept, point.bytes.peak or 0
        values[point.name, ERROR] = plan.errors.measured if point.name == PLAN else point.error
        values[point.name, WORK] = point.work or 0.0
    for name, other in others.items():
        values[name, PEAK], values[name, ERROR] = other.planned.peak or 0, other.errors.measured
        values[name, AGAIN] = len(other.recomputed)
    return [
        Row(implementation=way, unit=unit, **base, **origin(CPU), **summary([float(value)]))
        for (way, unit), value in values.items()
    ]


def times(base: dict[str, Any], plan: Plan, runs: int) -> list[Row]:
    """Rows of seconds, of models that run for real, each with weights of its own."""
    calls = {way: _step(base["what"], way, plan) for way in (STOCK, CHECKPOINT, PLAN)}
    taken = {way: seconds for way, (seconds, _) in rounds(clock_of(CPU), calls, runs).items()}
    return ratio_rows({**base, **origin(CPU)}, taken, STOCK)


def _step(name: str, way: str, plan: Plan) -> Callable[[], object]:
    torch.manual_seed(0)
    model, args, kwargs = zoo.build(name)
    if way == PLAN:
        compress(model, plan=plan)
    elif way == CHECKPOINT:
        checkpoint_each(blocks(model))
    return lambda: loss(model(*args, **kwargs)).backward()


def measured(models: Sequence[str], runs: int, count: int, fronts: dict[str, Front]) -> Iterator[list[Row]]:
    """The rows of each model; its front is put into `fronts`."""
    for name in models:
        begun = time.perf_counter()
        task = task_of(name)
        budget = (task.stock.peak or 0) // SHARE
        plan = plan_of(task, budget, goal="error")
        seconds = time.perf_counter() - begun
        front, others = front_of(task, plan, "peak", count), dict[str, Plan]()
        if name == DRAWN:
            checkpointed = next(point for point in front.named if point.name == CHECKPOINT)
            others[LOWER] = plan_of(task, int(BELOW * (checkpointed.bytes.peak or 0)), goal="error")
        fronts[name] = front
        yield steps(_base(task, name, STEP), plan, front, others, seconds)
        if name in TIMED:
            yield times(_base(task, name, TIME), plan, runs)


def described(rows: Sequence[Row]) -> str:
    """The result in a line, shown while the rest runs."""
    if rows[0].mode == TIME:
        ratios = (f"{row.implementation} {row.median:.2f}" for row in rows if row.unit == "ratio of times")
        return f"{rows[0].what}: times {', '.join(ratios)}"
    errors = {row.implementation: row.median for row in rows if row.unit == ERROR}
    return f"{rows[0].what}: error by plan {errors[PLAN]:.2%}, uniform {errors[UNIFORM]:.2%}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.budget(__doc__).parse_args(arguments)
    models = names("models", options.models, tuple(NAMED))
    runs = runs_of(options.runs, 1 if options.quick else parsers.BUDGET_RUNS)
    out = output(options.out)
    fronts: dict[str, Front] = {}
    with torch_threads(1):
        rows = described_rows(measured(models, runs, QUICK_COUNT if options.quick else COUNT, fronts), described, out)
        record([(PROG, rows)], out, options.quick, partial=options.models is not None)
    if DRAWN in fronts and not (out or options.quick):
        fronts[DRAWN].plot(RESULTS / origin(CPU)["device"] / PICTURE)
    return command.GOOD


def section() -> str:
    """A table of the models, and the picture of one front, for docs/budget.md: of the first device with rows of all."""
    for device, rows in read(PROG).items():
        if {row["what"] for row in rows} < set(NAMED):
            continue
        row_of = {(row["what"], row["implementation"], row["unit"]): row for row in rows}
        picture = f"![{NAMED[DRAWN]}: bytes at the peak against the error](../benchmarks/results/{device}/{PICTURE})"
        cells = (_cells(name, row_of) for name in NAMED)
        return "\n".join([*table(HEAD, cells), "", _note(rows), "", _lower(row_of), "", picture, ""])
    return "No rows yet.\n"


def _cells(name: str, row_of: dict[tuple[str, str, str], dict[str, Any]]) -> list[str]:
    def value(way: str, unit: str) -> float:
        return float(row_of[name, way, unit]["median"])

    ratios = [spread(row_of.get((name, f"{way} / {STOCK}", "ratio of times"))) for way in (PLAN, CHECKPOINT)]
    uniform = f"{100 * value(UNIFORM, ERROR):.2g} % ({value(UNIFORM, BITS):.0f} bits)"
    peaks = [size(int(value(way, PEAK))) for way in (STOCK, BUDGET, CHECKPOINT)]
    work = [f"{value(way, WORK):.2f}" for way in (PLAN, CHECKPOINT)]
    plan = [f"{100 * value(PLAN, ERROR):.2g} %", uniform, work[0], ratios[0]]
    row = row_of[name, STOCK, PEAK]
    title = f"{NAMED[name]}, {row['size']['batch']} × {row['size']['length']}, {row['dtype']}"
    return [title, *peaks[:2], *plan, peaks[2], work[1], ratios[1]]


def _lower(row_of: dict[tuple[str, str, str], dict[str, Any]]) -> str:
    peak, error, again = (row_of[DRAWN, LOWER, unit]["median"] for unit in (PEAK, ERROR, AGAIN))
    return (
        f"With less than checkpoints need, a plan computes blocks again, too, from inputs in few bits: {NAMED[DRAWN]}"
        f" in {size(int(peak))}, with an error of {100 * error:.2g} %, computes {again:.0f} blocks again."
    )


def _note(rows: list[dict[str, Any]]) -> str:
    timed = next(row for row in rows if row["mode"] == TIME)
    seconds = max(row["median"] for row in rows if row["unit"] == SECONDS)
    return (
        "Bytes over what is there before the step, as a CPU runs the models. Error: of the gradient, measured on a"
        f" narrow copy with random weights. Products of matrices and attention, and time: × the model as it is; time on"
        f" {place(timed)}, where freed memory stays in the process. A plan took {seconds:.0f} s at most."
        " Checkpointing of each block is exact, and computes most of the block twice."
    )


if __name__ == "__main__":
    sys.exit(command.run(PROG, main, (KernelError,)))
