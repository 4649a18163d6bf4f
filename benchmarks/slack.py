"""python -m benchmarks.slack: the instructions of every kernel. No GPU is needed.

Compiles all kernels for sm_80 and sm_90 (`codegen.inspect`) and counts their instructions. Writes rows under
benchmarks/results/sm_80/ and sm_90/kernels.jsonl, which tests/codegen/test_inspect.py holds the kernels to.
Needs Triton: pip install triton. About a quarter of an hour on two cores.
"""

from actfit.coefficients import command
from benchmarks import parsers

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("slack", lambda: parsers.slack(__doc__).parse_args())

import importlib.util
import platform
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from actfit.codegen import generated
from actfit.codegen.inspect import Report, inspect
from actfit.codegen.inspect import kernel as kernel_of
from actfit.codegen.options import METHODS, method
from actfit.codegen.subject import DTYPES
from actfit.fitting.activations import names
from actfit.fitting.errors import InputError
from actfit.kernels.engine import templates
from actfit.kernels.generated.functions import FUNCTIONS
from actfit.kernels.methods.method import Method
from benchmarks.rows import RESULTS, Row, read_lines, revision, save, summary

ARCHS = ("sm_80", "sm_90")
MOST_EMITTED = 4  # bits of a table that is part of a kernel; IN_MEMORY: functions that stand for all with more
IN_MEMORY = ("gelu", "silu")
MISSING = "benchmarks.slack needs Triton (Linux) to compile and disassemble: pip install triton"
UNIT = "instructions per element"

Task = tuple[str, Method, str, str]  # what `inspect` takes


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
    print(f"{len(reports)} kernels in {time.monotonic() - begun:.0f} s; wrote {RESULTS}/sm_*/kernels.jsonl")
    return 0


if __name__ == "__main__":
    sys.exit(main())
