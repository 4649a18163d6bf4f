"""The commands of fitting as other processes, and the files they leave."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import coefficients

ROOT = Path(coefficients.__file__).parents[1]
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX pipes, devices and signals")

Ended = tuple[int, str, str]
Command = Callable[..., Ended]


def environment(**changes: str) -> dict[str, str]:
    """For processes: this checkout first, and buffers as users have them."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONUNBUFFERED", "PYTHONIOENCODING")}
    return {**kept, "PYTHONPATH": str(ROOT), **changes}


def process(
    command: str, *words: str, before: tuple[str, ...] = (), **options: Any
) -> subprocess.CompletedProcess[str]:
    """`python -m fitting.command`, ended."""
    return subprocess.run(
        [*before, sys.executable, "-W", "error", "-m", f"fitting.{command}", *words],
        **{"text": True, "stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment(), **options},
        check=False,
    )


def stored(path: str | Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(path).read_text("ascii"))
    return loaded


def files(below: str | Path = ".") -> list[str]:
    return sorted(str(path.relative_to(below)) for path in Path(below).rglob("*") if path.is_file())
