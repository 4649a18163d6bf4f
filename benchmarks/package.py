"""python -m benchmarks.package: what the package itself costs: imports, commands, the wheel.

Each import and command runs in a process of its own, and what an empty Python takes is measured beside: the seconds of
the processor, which are those that one waits for where nothing else runs. Rows, as JSON lines, in
benchmarks/results/<device>/package.jsonl, whole or not at all; --quick writes to --out only. what: "import", "command"
or "distribution"; implementation: which; unit: s, or B of a built file.
"""

from benchmarks import parsers
from coefficients import command

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("package", lambda: parsers.package(__doc__).parse_args())

import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tqdm import tqdm

from benchmarks.options import output
from benchmarks.options import runs as runs_of
from benchmarks.pages import Rows, read, table
from benchmarks.rows import Row, record, summary

PROG = "package"
ROOT = Path(__file__).parents[1]
STATEMENTS = (
    "pass",
    "import coefficients",
    "import fitting.activations",
    "import fitting.fewbit.solve",
    "import kernels",
    "import torch",
    "from kernels import convert",
)
COMMANDS = (
    "coefficients list",
    "coefficients check --no-recompute",
    "fitting.fewbit --fn gelu --bits 3",
    "codegen list",
    "codegen emit --fn silu",
    "kernels.memory --model mlp",
)
RUNS, QUICK_RUNS = parsers.PACKAGE_RUNS, 1


def measure(rounds: int) -> list[Row]:
    """All rows. In each round all take turns; the first round is not counted."""
    built = distribution()
    calls = {("import", statement): ["-c", statement] for statement in STATEMENTS}
    calls |= {("command", f"python -m {line}"): ["-m", *shlex.split(line)] for line in COMMANDS}
    seconds_of: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for turn in tqdm(range(rounds + 1), unit="round", disable=None):
        for key, words in calls.items():
            seconds = _seconds(words)
            if turn:
                seconds_of[key].append(seconds)
    mode = "processor"
    return [Row(*key, mode, {}, "", "s", **summary(seconds)) for key, seconds in seconds_of.items()] + [built]


def distribution() -> Row:
    """The bytes of the wheel. Raises Misuse where hatchling, which builds it, is missing."""
    if find_spec("hatchling") is None:
        raise command.Misuse("hatchling must be installed, to build the wheel: pip install -e '.[test]'")
    with tempfile.TemporaryDirectory() as folder:
        build = ["-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "-w", folder, "."]
        _seconds(build)
        (wheel,) = Path(folder).glob("*.whl")
        return Row("distribution", "wheel", "once", {}, "", "B", **summary([float(wheel.stat().st_size)]))


def _seconds(words: Sequence[str]) -> float:
    begun = _of_children()
    done = subprocess.run([sys.executable, *words], cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise command.Misuse(f"python {shlex.join(words)} must run, and ends with: {''.join(last)}")
    return _of_children() - begun


def _of_children() -> float:
    """Seconds of the processor that ended child processes took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def section() -> str:
    """The table of docs/performance.md."""
    lines: list[str] = []
    for device, rows in read("package").items():
        timed = [row for row in rows if row["unit"] == "s"]
        (wheel,) = (row for row in rows if row["what"] == "distribution")
        text = (
            f"On {device}, seconds of the processor, each in a process of its own, medians of {timed[0]['runs']}; the"
            " wheel has"
        )
        lines += ["", f"{text} {wheel['median'] / 1e6:.2f} MB.", "", *_table(timed)]
    return "\n".join(lines[1:]) + "\n"


def _table(rows: Rows) -> list[str]:
    return table(["", "seconds"], ([f"`{row['implementation']}`", f"{row['median']:.2f}"] for row in rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.package(__doc__).parse_args(arguments)
    out = output(options.out)
    rows = measure(runs_of(options.runs, QUICK_RUNS if options.quick else RUNS))
    record([("package", rows)], out, options.quick)
    return command.GOOD


if __name__ == "__main__":
    sys.exit(command.run(PROG, main))
