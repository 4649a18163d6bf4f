"""python -m benchmarks.slack: what every kernel costs, and whether memory or arithmetic bounds it. No GPU is needed.

Compiles all kernels for sm_80 and sm_90 (`codegen.inspect`) and counts their instructions. Writes docs/slack.md, and
rows under benchmarks/results/sm_80/ and sm_90/kernels.jsonl, which tests/codegen/test_inspect.py holds the kernels to.
Needs Triton: pip install triton. About a quarter of an hour on two cores.
"""

from benchmarks import parsers
from coefficients import command

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("slack", lambda: parsers.slack(__doc__).parse_args())

import importlib.util
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.rows import RESULTS, Row, read_lines, revision, save, summary
from codegen import generated
from codegen.inspect import DIRECTIONS, Report, inspect
from codegen.inspect import kernel as kernel_of
from codegen.machine import GPUS, Prediction
from codegen.options import METHODS, method
from codegen.subject import DTYPES
from coefficients.files import write_text
from fitting.activations import names
from fitting.errors import InputError
from kernels.engine import templates
from kernels.methods.functions import FUNCTIONS
from kernels.methods.method import Method

ARCHS = ("sm_80", "sm_90")
MOST_EMITTED = 4  # bits of a table that is part of a kernel; IN_MEMORY: functions that stand for all with more
IN_MEMORY = ("gelu", "silu")
PAGE = Path(__file__).parents[1] / "docs" / "slack.md"
MISSING = "benchmarks.slack needs Triton (Linux) to compile and disassemble: pip install triton"
UNIT = "instructions per element"

Task = tuple[str, Method, str, str]  # what `inspect` takes

TEXT = """# What the kernels leave to memory

Written by `python -m benchmarks.slack`, which compiles every kernel as it runs (no GPU is needed) and counts the
instructions in the machine code; for a single kernel, `python -m codegen inspect --fn gelu --arch sm_90` prints more.
{versions}; {count} kernels, forward and backward.

While memory delivers the bytes of one element, a GPU can give out only so many instructions. A kernel that needs
fewer is bound by memory: it costs what moving the bytes costs, and its arithmetic is free. The tables give, in percent,
the share of that time that a kernel's instructions need. Above 100, arithmetic is what takes the time. A letter names
the unit that is busiest where that is not the one that gives out instructions: *f* multiplies and adds, *l* compares,
selects and handles integers, *s* special functions (exp2, rsqrt, ...).

What is assumed of each GPU, per multiprocessor (SM) and clock; sources are in
[`machine.py`](../codegen/machine.py):

{machines}

What this leaves out: latency (many warps are taken to hide it), launching, the caches and their bandwidth (a table of
5 to 8 bits is read from the first-level cache), and memory's own inefficiencies. Element counts are taken to be
multiples of 16; Triton compiles another kernel for others, whose accesses are of single elements.
Two directions of one kernel are never averaged: each must be bound by memory itself.

{bound}

## Kernels whose arithmetic takes the time

Forward or backward, with the larger share of the two. All that is not named here is bound by memory both ways.
Tables of 5 to 8 bits are searched in the same way for every function; GELU and SiLU stand for all.
The instructions of all these kernels are in `benchmarks/results/sm_80/kernels.jsonl` and `sm_90/kernels.jsonl`.

{tables}"""


def tasks() -> list[Task]:
    """All kernels, but of tables in memory only those of IN_MEMORY: their search is the same for every function."""
    made = []
    for function in names():
        for name in METHODS:
            for bits in FUNCTIONS[function].tables if method(name, None).widths else (0,):
                if bits > MOST_EMITTED and function not in IN_MEMORY:
                    continue
                for dtype in DTYPES:
                    with suppress(InputError):  # no kernel
                        value = method(name, bits or None)
                        kernel_of(function, value, dtype)
                        made += [(function, value, dtype, arch) for arch in ARCHS]
    return made


def rows(reports: Iterable[Report]) -> list[Row]:
    """A row for each kernel and direction."""
    at = revision()
    made = []
    for report in reports:
        spec, versions = report.spec, {"python": platform.python_version(), "triton": report.triton}
        size = {"bits": report.bits, "elements": report.elements}
        made.append(
            Row("kernel", spec.function.name, f"{spec.method.name} {report.direction}", size, report.dtype, UNIT,
                **summary([report.instructions]), device=report.arch, versions=versions, revision=at)  # type: ignore[arg-type]
        )  # fmt: skip
    return made


def load(arch: str) -> dict[tuple[str, str, int, str], dict[str, Any]]:
    """Stored rows by function, method and direction, bits and dtype."""
    lines = read_lines(RESULTS / arch / "kernels.jsonl")
    return {(row["implementation"], row["mode"], row["size"]["bits"], row["dtype"]): row for row in lines}


def page(reports: Sequence[Report]) -> str:
    """docs/slack.md."""
    by_kernel = {(_kernel(report), report.arch, report.direction): report for report in reports}
    dtypes = [f"### {dtype}\n\n" + _table(by_kernel, dtype) for dtype in DTYPES]
    return TEXT.format(
        versions=f"Triton {reports[0].triton}",
        count=len({_kernel(report) for report in reports}),
        machines=_machines(),
        bound=_bound(reports),
        tables="\n".join(dtypes),
    )


def _kernel(report: Report) -> tuple[str, str, int, str]:
    return report.spec.function.name, report.spec.method.name, report.bits, report.dtype


def _machines() -> str:
    lines = ["| GPU | SMs | GHz | TB/s | bytes | give out | *f* | *l* | *s* |", "|---|---|---|---|---|---|---|---|---|"]
    for gpu in GPUS:
        lanes = " | ".join(map(str, gpu.lanes.values()))
        lines.append(
            f"| {gpu.name} | {gpu.multiprocessors} | {gpu.clock:.2f} | {gpu.bandwidth:g} ({gpu.source}) |"
            f" {gpu.bytes_per_clock:.1f} | {lanes} |"
        )
    return "\n".join(lines)


def _bound(reports: Sequence[Report]) -> str:
    """The table of how many kernels are bound by memory, by GPU and dtype."""
    lines = ["Kernels bound by memory, forward and backward each counted:", ""]
    lines += ["| GPU | " + " | ".join(DTYPES) + " |", "|---|" + "---|" * len(DTYPES)]
    for gpu in GPUS:
        cells = []
        for dtype in DTYPES:
            predictions = [
                _of(report, gpu.name) for report in reports if (report.arch, report.dtype) == (gpu.arch, dtype)
            ]
            cells.append(f"{sum(prediction.memory_bound for prediction in predictions)} of {len(predictions)}")
        lines.append(f"| {gpu.name} | {' | '.join(cells)} |")
    spilling = [f"{report.title}, {report.direction}" for report in reports if report.spilled]
    winding = sum(not report.code.straight for report in reports)
    lines += ["", f"Of all {len(reports)}, {winding} have loops or calls and {len(spilling)} spill registers to memory"]
    lines[-1] += ": " * bool(spilling) + "; ".join(spilling) + "."
    return "\n".join(lines)


def _of(report: Report, gpu: str) -> Prediction:
    return next(prediction for prediction in report.predictions if prediction.gpu == gpu)


def _table(by_kernel: dict[Any, Report], dtype: str) -> str:
    """By function and GPU: the kernels whose arithmetic takes the time in one of both directions, the slower one."""
    lines = ["| function | " + " | ".join(gpu.name for gpu in GPUS) + " |", "|---|" + "---|" * len(GPUS)]
    kernels = list(dict.fromkeys(kernel for kernel, *_ in by_kernel if kernel[3] == dtype))
    for function in dict.fromkeys(kernel[0] for kernel in kernels):
        cells = []
        for gpu in GPUS:
            slower = {
                kernel: max(
                    (_of(by_kernel[kernel, gpu.arch, direction], gpu.name) for direction in DIRECTIONS),
                    key=lambda prediction: prediction.shares[prediction.tightest],
                )
                for kernel in kernels
                if kernel[0] == function
            }
            cells.append(", ".join(_share(*item) for item in slower.items() if not item[1].memory_bound) or "–")
        if set(cells) != {"–"}:
            lines.append("| " + " | ".join([function, *cells]) + " |")
    return "\n".join(lines) + "\n"


def _share(kernel: tuple[str, str, int, str], prediction: Prediction) -> str:
    _, method, bits, _ = kernel
    unit = prediction.tightest
    letter = f" *{unit[0]}*" if unit != "issue" else ""
    return f"{method}{f' {bits}' if bits else ''}: {100 * prediction.shares[unit]:.0f}{letter}"


def _sources() -> dict[Path, bytes]:
    """The sources of all kernels that are compiled."""
    return {path: path.read_bytes() for path in (*templates.FILES, *sorted(generated.FOLDER.glob("*_triton.py")))}


def main() -> int:
    options = parsers.slack(__doc__).parse_args()
    if importlib.util.find_spec("triton") is None:
        print(MISSING, file=sys.stderr)
        return 2
    from joblib import Parallel, delayed  # not needed to read the rows
    from tqdm import tqdm

    begun, todo, before = time.monotonic(), tasks(), _sources()
    runs = Parallel(n_jobs=options.jobs, return_as="generator")(delayed(inspect)(*task) for task in todo)
    reports = [report for pair in tqdm(runs, total=len(todo), unit="kernel", disable=None) for report in pair]
    if _sources() != before:
        print("kernels must stay as they are while they are compiled, but some changed; run it again", file=sys.stderr)
        return 1
    for arch in ARCHS:
        save(rows(report for report in reports if report.arch == arch), "kernels")
    write_text(PAGE, page(reports))
    print(f"{len(reports)} kernels in {time.monotonic() - begun:.0f} s; wrote {PAGE} and {RESULTS}/sm_*/kernels.jsonl")
    return 0


if __name__ == "__main__":
    sys.exit(main())
