"""python -m benchmarks.gpu.tests GROUP: a group of tests on the device, shared by several processes.

Without pytest-xdist, which may be missing. The names of tests that fail are written to --out, a line each.
"""

from benchmarks import parsers
from coefficients import command

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("gpu.tests", lambda: parsers.gpu_tests(__doc__))

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.gpu import running
from benchmarks.gpu.steps import GROUPS, Group, shard_count

PROG = "gpu.tests"
TIMEOUT = 580
NOTHING_RUN = 5  # pytest's status where it selected no test


def words(group: Group, dry: bool) -> list[str]:
    """pytest's command."""
    files = group.dry if dry else group.files
    paths = [str(Path("tests", word)) if word.endswith(".py") else word for word in files]
    marked = ["-m", group.marked] if group.marked and not dry else []
    # What CUDA warns of, as that TF32 is off, is not known yet, and no reason to measure nothing.
    quiet = ["-q", "-rfE", "-p", "no:cacheprovider", "-W", "default"]
    return [sys.executable, "-m", "pytest", *quiet, *paths, *marked]


def failures(log: Path) -> list[str]:
    """Names of tests that failed, in pytest's summary."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    short = (line.split(" - ")[0].split(maxsplit=1) for line in lines if line.startswith(("FAILED ", "ERROR ")))
    return [name.strip() for _, name in short]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.gpu_tests(__doc__, arguments)
    group, out = GROUPS[options.group], options.out
    shards = 1 if options.dry else shard_count()
    logs = [out.with_suffix(f".{shard}.txt") for shard in range(shards)]

    def run(shard: int) -> int:
        environment = {"ACTFIT_SHARD": f"{shard}/{shards}", "OMP_NUM_THREADS": "1", "CI": "true"}
        return running.run(words(group, options.dry), logs[shard], TIMEOUT, environment, within=True)

    with ThreadPoolExecutor(shards) as pool:
        statuses = list(pool.map(run, range(shards)))
    failed = [name for log in logs for name in failures(log)]
    for status, log in zip(statuses, logs, strict=True):
        print(*running.tail(log, 1 if status in (0, NOTHING_RUN) else 25), sep="\n")
    ended = [status for status in statuses if status not in (0, 1, NOTHING_RUN)]
    if ended:  # by a signal, or too late: what it would have said is not known
        failed.append(f"{options.group}: pytest ended with {', '.join(map(str, ended))}")
    if not failed and (1 in statuses or all(status == NOTHING_RUN for status in statuses)):
        failed.append(f"{options.group}: no test was run")
    out.write_text("".join(f"{name}\n" for name in failed), encoding="utf-8")
    return command.BAD if failed else command.GOOD


if __name__ == "__main__":
    sys.exit(command.run(PROG, main))
