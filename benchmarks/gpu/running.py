"""Run a command with a time-out, its output in a file; nothing that it started outlives it."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.gpu.steps import root

TIMED_OUT = 124
GRACE = 10  # seconds, from asking to end to ending


def run(
    words: Sequence[str],
    log: Path,
    timeout: float,
    environment: Mapping[str, str] | None = None,
    *,
    within: bool = False,
) -> int:
    """The exit status, TIMED_OUT where it took too long; KeyboardInterrupt ends the command, too.

    within: in the process group that this one is in, so that who ends that ends the command.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*words],
            cwd=root(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
            start_new_session=not within,
        )
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return TIMED_OUT
        finally:
            _end(process, os.kill if within else os.killpg)


def _end(process: subprocess.Popen[bytes], kill: Callable[[int, int], None]) -> None:
    """The process and all that it started: asked first, since a GPU is better left by those who use it."""
    if process.poll() is None:
        kill(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    if process.returncode is None or kill is os.killpg:  # who has ended may have left others of its group
        with suppress(ProcessLookupError):
            kill(process.pid, signal.SIGKILL)
    process.wait()


def tail(log: Path, lines: int) -> list[str]:
    """The last lines that say something."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    return [line for line in text.splitlines() if line.strip()][-lines:]
