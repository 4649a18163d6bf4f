"""Run the commands of fitting as other processes, and list the files they leave."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actfit import coefficients

ROOT = Path(coefficients.__file__).parents[1]
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX pipes, devices and signals")

Ended = tuple[int, str, str]
Command = Callable[..., Ended]


def environment(**changes: str) -> dict[str, str]:
    """The environment of processes: this checkout first on the path, and buffered output, as users have it."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONUNBUFFERED", "PYTHONIOENCODING")}
    return {**kept, "PYTHONPATH": str(ROOT), **changes}


def python(*words: str, before: tuple[str, ...] = (), **options: Any) -> subprocess.CompletedProcess[str]:
    """A finished Python process in which warnings are errors."""
    return subprocess.run(
        [*before, sys.executable, "-W", "error", *words],
        **{"text": True, "stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment(), **options},
        check=False,
    )


def process(command: str, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A finished process of `python -m fitting.command`."""
    return python("-m", f"fitting.{command}", *words, **options)


def stored(path: str | Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(path).read_text("ascii"))
    return loaded


def files(below: str | Path = ".") -> list[str]:
    return sorted(str(path.relative_to(below)) for path in Path(below).rglob("*") if path.is_file())
