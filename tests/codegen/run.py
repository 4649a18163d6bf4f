"""Emitted text made to run: Triton's in the interpreter, on CPU tensors."""

import importlib.util
import itertools
from pathlib import Path
from types import ModuleType

import pytest

_COUNT = itertools.count()


def module(text: str, folder: Path) -> ModuleType:
    """The text imported as a module of its own."""
    path = folder / f"emitted_{next(_COUNT)}.py"
    path.write_text(text, encoding="utf-8")
    specification = importlib.util.spec_from_file_location(path.stem, path)
    found = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(found)
    return found


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter for CPU tensors."""
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
