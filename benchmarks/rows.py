"""The row format of all benchmarks, and the files of rows."""

import hashlib
import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from actfit.coefficients import command
from actfit.coefficients.files import write_text
from actfit.coefficients.store import DATA

RESULTS = Path(__file__).with_name("results")
LIBRARIES = ("numpy", "scipy", "numba", "sympy")


def device() -> str:
    """The processor's name, as the name of a folder."""
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        name = re.findall(r"model name\s*:\s*(.*)", info)[0]
    except (OSError, IndexError):
        name = platform.processor() or platform.machine()
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()


def revision() -> str:
    """The environment's ACTFIT_REVISION, or the commit measured, with a + if files other than results differ from it;
    outside git `unknown`."""
    if stated := os.environ.get("ACTFIT_REVISION"):  # a copy may have another commit's .git, or none
        return stated
    differs = ["git", "diff", "--quiet", "HEAD", "--", ":(top)", ":(top,exclude)benchmarks/results"]
    try:
        commit, changed = (
            subprocess.run(words, cwd=RESULTS.parent, capture_output=True, text=True, check=False)
            for words in (["git", "describe", "--always"], differs)
        )
    except OSError:  # git is not installed
        return "unknown"
    return commit.stdout.strip() + "+" * (changed.returncode == 1) if commit.returncode == 0 else "unknown"


@cache
def coefficients() -> str:
    """The version of the coefficient files: the first digits of SHA-256 over all names and bytes, by name."""
    digest = hashlib.sha256()
    for path in sorted(DATA.rglob("*.json"), key=lambda path: path.relative_to(DATA).as_posix()):
        digest.update(path.relative_to(DATA).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def versions() -> dict[str, str]:
    """The versions of Python and of the installed LIBRARIES."""
    numbers = {"python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            numbers[name] = metadata.version(name)
    return numbers


@dataclass(frozen=True)
class Row:
    """One measurement: `what` by which `implementation`, in which `mode`, at which `size`, in which `unit`."""

    what: str
    implementation: str
    mode: str
    size: dict[str, int]
    dtype: str
    unit: str
    median: float
    quantiles: tuple[float, float]  # 20 % and 80 %
    runs: int
    device: str = field(default_factory=device)
    versions: dict[str, str] = field(default_factory=versions)
    revision: str = field(default_factory=revision)
    coefficients: str = field(default_factory=coefficients)


def summary(values: list[float]) -> dict[str, object]:
    """The fields of a row that come from repeated measurements."""
    ordered = sorted(values)
    low, high = ordered[round(0.2 * (len(ordered) - 1))], ordered[round(0.8 * (len(ordered) - 1))]
    return {"median": statistics.median(values), "quantiles": (low, high), "runs": len(values)}


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write rows as JSON lines, whole or not at all."""
    write_whole(path, "".join(json.dumps(asdict(row)) + "\n" for row in rows))


def write_whole(path: Path, text: str) -> None:
    """Write a text to a file, whole or not at all, or to a device such as a pipe."""
    if command.is_device(path):
        path.write_text(text, encoding="utf-8")
    else:
        write_text(path, text)


def save(rows: Sequence[Row], name: str, partial: bool = False) -> Path:
    """Write rows to results/<device>/<name>.jsonl, where the device is that of the rows.

    partial: keep the file's rows that were not measured again.
    """
    path = RESULTS / rows[0].device / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, joined(read(path), rows) if partial and path.exists() else rows)
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file of rows, one a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read(path: Path) -> list[Row]:
    """The rows of a file that `write` wrote."""
    return [Row(**{**line, "quantiles": tuple(line["quantiles"])}) for line in read_lines(path)]


def joined(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """The old rows, each replaced by the new row of the same measurement; other new rows come last."""
    rows = {_measurement(row): row for row in old}
    rows.update((_measurement(row), row) for row in new)
    return list(rows.values())


def _measurement(row: Row) -> tuple[object, ...]:
    """The fields that identify a measurement."""
    return row.what, row.implementation, row.mode, tuple(sorted(row.size.items())), row.dtype, row.unit


def record(files: Iterable[tuple[str, Sequence[Row]]], out: Path | None, quick: bool, partial: bool = False) -> None:
    """Save the rows of each file as soon as they are measured; with `out`, save all rows in that one file.

    quick: the rows only show that everything runs; they go to `out` or nowhere. partial: see `save`.
    """
    every: list[Row] = []
    for name, rows in files:
        every += rows
        if out is None and not quick and rows:
            print(f"{len(rows)} rows, wrote {save(rows, name, partial)}")
    if out is not None:
        write(out, every)
        print(f"{len(every)} rows, wrote {out}")


def described_rows(
    groups: Iterable[list[Row]], described: Callable[[list[Row]], str], so_far: Path | None = None
) -> list[Row]:
    """The rows of all groups; each group is described in a line as soon as it is measured.

    so_far: a file to write all rows to after each group, so that they stay if the process is killed; not a pipe.
    """
    rows: list[Row] = []
    for group in groups:
        rows += group
        if group:
            print(described(group), flush=True)
            if so_far is not None and not command.is_device(so_far):
                write(so_far, rows)
    return rows
