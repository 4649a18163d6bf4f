"""python -m benchmarks.gpu.tests GROUP: a group of tests on the device, shared by several processes.

The names of tests that fail are written to --out, a line each.
"""

from actfit.coefficients import command
from benchmarks.gpu import parsers

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("gpu.tests", lambda: parsers.gpu_tests(__doc__))

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import running
from benchmarks.gpu.steps import GROUPS, Group, worker_count

PROG = "gpu.tests"
TIMEOUT = 580


def words(group: Group, dry: bool) -> list[str]:
    """pytest's command."""
    files = group.dry if dry else group.files
    paths = [str(Path("tests", word)) if word.endswith(".py") else word for word in files]
    marked = ["-m", group.marked] if group.marked and not dry else []
    # What CUDA warns of, as that TF32 is off, is not known yet, and no reason to measure nothing.
    quiet = ["-q", "-rfE", "-p", "no:cacheprovider", "-W", "default"]
    shared = [] if dry else ["-n", str(worker_count()), "--dist", "worksteal"]
    return [sys.executable, "-m", "pytest", *quiet, *shared, *paths, *marked]


def failures(log: Path) -> list[str]:
    """Names of tests that failed, in pytest's summary."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    short = (line.split(" - ")[0].split(maxsplit=1) for line in lines if line.startswith(("FAILED ", "ERROR ")))
    return [name.strip() for _, name in short]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.gpu_tests(__doc__, arguments)
    if not options.dry:
        command.exit_without("xdist", PROG, "pip install pytest-xdist")
    log = options.out.with_suffix(".txt")
    environment = {"OMP_NUM_THREADS": "1", "CI": "true"}
    status = running.run(words(GROUPS[options.group], options.dry), log, TIMEOUT, environment, within=True)
    failed = failures(log)
    print(*running.tail(log, 25 if status else 1), sep="\n")
    said = "".join(running.tail(log, 1))
    nothing_ran = not failed and " passed" not in said and not options.dry  # all were skipped, perhaps
    if status not in (0, 1) or nothing_ran:  # what those that did not run would have said is not known
        failed.append(f"{options.group}: pytest ended with {status}, {said}")
    options.out.write_text("".join(f"{name}\n" for name in failed), encoding="utf-8")
    return command.BAD if failed else command.GOOD


if __name__ == "__main__":
    sys.exit(command.run(PROG, main))
