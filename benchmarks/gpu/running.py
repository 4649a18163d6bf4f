"""Run a command with a time-out, its output in a file; nothing that it started outlives it."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.gpu.steps import root

TIMED_OUT = 124
GRACE = 10  # seconds, from asking to end to ending


def run(words: Sequence[str], log: Path, timeout: float, environment: Mapping[str, str]) -> int:
    """The exit status, TIMED_OUT where it took too long; KeyboardInterrupt ends the command, too."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*words],
            cwd=root(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            start_new_session=True,
        )
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return TIMED_OUT
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process and all that it started: asked first, since a GPU is better left by those who use it."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with suppress(ProcessLookupError):  # who has ended may have left others of its group
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tail(log: Path, lines: int) -> list[str]:
    """The last lines that say something."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    return [line for line in text.splitlines() if line.strip()][-lines:]


def failed_tests(status: int, log: Path, dry: bool) -> tuple[str, ...]:
    """Names of tests that failed, in pytest's summary; besides, how it ended where it broke off or ran none."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    short = (line.split(" - ")[0].split(maxsplit=1) for line in lines if line.startswith(("FAILED ", "ERROR ")))
    failed = [name.strip() for _, name in short]
    said = "".join(tail(log, 1))
    nothing_ran = not failed and " passed" not in said and not dry  # all were skipped, perhaps
    if status not in (0, 1) or nothing_ran:  # what those that did not run would have said is not known
        failed.append(f"pytest ended with {status}, {said}")
    return tuple(failed)
