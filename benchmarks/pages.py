"""Helpers for pages made from rows: reading, grouping, and Markdown."""

from collections.abc import Iterable
from math import prod
from typing import Any

from benchmarks.rows import RESULTS, read_lines

Rows = list[dict[str, Any]]


def read(name: str, mode: str | None = None) -> dict[str, Rows]:
    """By device, the rows of results/<device>/<name>.jsonl, of one mode if given; devices without rows are left out."""
    by_device = {}
    for path in sorted(RESULTS.glob(f"*/{name}.jsonl")):
        by_device[path.parent.name] = [row for row in read_lines(path) if mode in (None, row["mode"])]
    return {device: rows for device, rows in by_device.items() if rows}


def on_gpus(name: str, mode: str | None = None) -> dict[str, Rows]:
    """The rows of a file by GPU; rows of a GPU name CUDA's version."""
    return {device: rows for device, rows in read(name, mode).items() if "cuda" in rows[0]["versions"]}


def of_any(name: str, mode: str | None = None) -> Rows:
    """The rows of one device: for counted bytes, which are the same on every device."""
    return next(iter(read(name, mode).values()))


def by(rows: Iterable[dict[str, Any]], *keys: str) -> dict[Any, Rows]:
    """Rows grouped by their values of some keys."""
    groups: dict[Any, Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def line(cells: Iterable[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a table."""
    head = list(head)
    return [line(head), "|---" * len(head) + "|", *map(line, lines)]


def largest(rows: Rows) -> Rows:
    """The rows of the largest size."""
    most = max(prod(row["size"].values()) for row in rows)
    return [row for row in rows if prod(row["size"].values()) == most]


def place(row: dict[str, Any]) -> str:
    """Where a row was measured."""
    threads = " and one thread" if row["versions"].get("threads") == "1" else ""
    return f"{row['device']} with torch {row['versions']['torch']}{threads}"


def spread(row: dict[str, Any] | None) -> str:
    """Median and quantiles of a row, if there is one."""
    return "–" if row is None else "{:.2f} ({:.2f}–{:.2f})".format(row["median"], *row["quantiles"])
