"""Checks of options and other helpers that the commands of the benchmarks share."""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from actfit.coefficients import command

if TYPE_CHECKING:
    import torch

MOST_RUNS = 10_000
DEVICES = ("cuda", "cpu")


def names(option: str, text: str | None, known: Sequence[str]) -> list[str]:
    """The names in a comma-separated list, each once; for None all known names. Raises Misuse for an unknown name."""
    asked = list(known) if text is None else list(dict.fromkeys(text.split(",")))
    for name in asked:
        one_of(option, name, known)
    return asked


def one_of(option: str, value: str, known: Sequence[str]) -> str:
    """The value itself; raises Misuse if it is not among the known values."""
    if value not in known:
        rule = " or ".join(known) if len(known) < 3 else f"of {', '.join(known)}"
        raise command.Misuse(f"{option} must be {rule}, got {value!r}")
    return value


def whole(option: str, word: str, most: int) -> int:
    """A whole number from 1, also as 2^12; raises Misuse for anything else."""
    match = re.fullmatch(r"(?:2\^(\d{1,2})|(\d{1,18}))", word, re.ASCII)
    value = 0 if match is None else 1 << int(match[1]) if match[1] else int(match[2])
    if not 1 <= value <= most:
        raise command.Misuse(f"{option} must be a whole number from 1 to {most}, got {word!r}")
    return value


def runs(text: str | None, default: int) -> int:
    """The number of rounds; raises Misuse if the text is not one."""
    return default if text is None else whole("runs", text, MOST_RUNS)


def output(text: str | None) -> Path | None:
    """The path of --out, if given; raises Misuse if it cannot be written."""
    return None if text is None else command.output_path("out", text)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Have torch use `count` threads. Benchmarks use 1: several wait for each other if others use the cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def can_compile(device: "torch.device") -> bool:
    """Whether torch.compile works: for a CPU it needs a C++ compiler."""
    return device.type == "cuda" or any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++")))


def device(kind: str | None) -> "torch.device":
    """The device cuda or cpu; None: cuda if available. Raises Misuse for another, or if cuda is not available."""
    import torch  # late: options are parsed before torch is imported

    usual = "cuda" if torch.cuda.is_available() else "cpu"
    name = one_of("device", usual if kind is None else kind, DEVICES)
    if name == "cuda" and not torch.cuda.is_available():
        raise command.Misuse("device must be there, got 'cuda', and torch sees no GPU; use --device cpu")
    return torch.device(name)
