"""What the pages made of rows have in common: reading, grouping, and Markdown."""

import json
from collections.abc import Iterable
from typing import Any

from benchmarks.rows import RESULTS

Rows = list[dict[str, Any]]


def read(name: str) -> dict[str, Rows]:
    """The rows of results/<device>/<name>.jsonl, by the device's name."""
    paths = sorted(RESULTS.glob(f"*/{name}.jsonl"))
    return {path.parent.name: [json.loads(line) for line in path.read_text("utf-8").splitlines()] for path in paths}


def of_any(name: str) -> Rows:
    """Those of any device, of what is the same on all: bytes that are counted."""
    return next(iter(read(name).values()))


def by(rows: Iterable[dict[str, Any]], *keys: str) -> dict[Any, Rows]:
    """Rows by what they have under some keys."""
    found: dict[Any, Rows] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a table."""
    head = list(head)
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(cells)} |" for cells in lines)]


def spread(row: dict[str, Any] | None) -> str:
    """Median and quantiles of a row, if there is one."""
    return "–" if row is None else "{:.2f} ({:.2f}–{:.2f})".format(row["median"], *row["quantiles"])
