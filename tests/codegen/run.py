"""Runs emitted text: Triton's in the interpreter, on CPU tensors; and Python in a separate process."""

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
_COUNT = itertools.count()


def script(code: str, *words: str) -> str:
    """The output of Python in a new process, where Triton is not imported yet: its import decides how it runs."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TRITON_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *words],
        **{"cwd": ROOT, "env": {**environment, "PYTHONPATH": str(ROOT)}, "capture_output": True, "text": True},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def module(text: str, folder: Path) -> ModuleType:
    """The text imported as a module of its own."""
    path = folder / f"emitted_{next(_COUNT)}.py"
    path.write_text(text, encoding="utf-8")
    specification = importlib.util.spec_from_file_location(path.stem, path)
    imported = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(imported)
    return imported


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter for CPU tensors."""
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
