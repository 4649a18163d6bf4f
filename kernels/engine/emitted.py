"""Functions whose code is emitted in this process: registered by key, written to temporary files, and imported.

Triton reads the source of a kernel from its file; and no text is ever evaluated.
"""

import atexit
import importlib.util
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from actfit.kernels.errors import KernelError

_LOCK = threading.RLock()


@dataclass(frozen=True)
class Emitted:
    """A function of one tensor with `count` results; `text(target, dtype)` is its module."""

    key: str
    count: int
    text: Callable[[str, str], str]


_KNOWN: dict[str, Emitted] = {}


def register_emitted(emitted: Emitted) -> None:
    """Register the function by its key, which no other function has."""
    _KNOWN.setdefault(emitted.key, emitted)


def is_emitted(key: str) -> bool:
    """Whether the key is that of a registered function."""
    return key in _KNOWN


def emitted_function(key: str) -> Emitted:
    """The function of a key."""
    if key not in _KNOWN:
        raise KernelError(f"key must be of a function that was called in this process, got {key!r}; call it first")
    return _KNOWN[key]


def module_of(key: str, target: str, dtype: str) -> ModuleType:
    """The function's module for a target ("triton" or "torch") and dtype, the same each time."""
    with _LOCK:
        return _module(key, target, dtype)


@cache
def _module(key: str, target: str, dtype: str) -> ModuleType:
    name = f"{key.replace('-', '_')}_{target}_{dtype}"
    path = _folder(os.getpid()) / f"{name}.py"
    path.write_text(emitted_function(key).text(target, dtype), encoding="utf-8")
    specification = importlib.util.spec_from_file_location(f"actfit_emitted.{name}", path)
    if specification is None or specification.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@cache
def _folder(process: int) -> Path:
    """A folder for this process, removed when it ends; a fork gets its own, and does not remove its parent's."""
    folder = Path(tempfile.mkdtemp(prefix="actfit-"))
    atexit.register(_remove, folder, process)
    return folder


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
