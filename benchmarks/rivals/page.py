"""The tables of the rivals' rows for docs/results/rivals.md."""

from typing import Any

from actfit.kernels.memory.saved import size
from benchmarks.baselines.blocks import (
    ACT_LINEAR,
    CHECKPOINT,
    COMPILE,
    EAGER,
    LATE,
    LIGER,
    RECOMPUTING,
    WIDER,
)
from benchmarks.pages import Rows, by, largest, of_any, place, read, spread, table
from benchmarks.rivals.__main__ import DTYPE

WEIGHT = "first.weight"
NAMES = {
    EAGER: "PyTorch, eager",
    COMPILE: "`torch.compile`",
    RECOMPUTING: "`torch.compile` with the flag",
    CHECKPOINT: "`torch.utils.checkpoint` of the block",
    LATE: "the same, from the activation on",
    LIGER: "Liger-Kernel",
    ACT_LINEAR: "**ours**, `ActLinear`",
}
ALLOCATED = "allocated"
RowsByName = dict[str, dict[str, Any]]  # rows by implementation


def section() -> str:
    """The tables of all kinds of blocks."""
    kinds = [kind for (kind,) in by(of_any("rivals-memory"), "what")]
    return "\n".join([line for kind in kinds for line in (*_table(kind), "")] + [_note()]) + "\n"


def _table(kind: str) -> list[str]:
    """One kind of block: bytes kept; for each device the gradient's error, the allocator's bytes and times."""
    kept = _by_name(of_any("rivals-memory", mode="counted"), kind)
    errors = {
        device: _by_name(rows, kind, mode=WEIGHT, dtype=DTYPE) for device, rows in read("rivals-accuracy").items()
    }
    books = {device: _by_name(largest(rows), kind) for device, rows in read("rivals-memory", mode=ALLOCATED).items()}
    times = {device: _by_name(rows, kind) for device, rows in _timed().items()}
    timed = {name.removesuffix(f" / {EAGER}") for medians in times.values() for name in medians}
    lines = []
    judged = (name for medians in (*errors.values(), *books.values()) for name in medians)
    for name in dict.fromkeys([*kept, *judged, *sorted(timed)]):
        cells = [NAMES.get(name, f"**ours**, {name}"), *_kept(kept, name)]
        cells += [f"{100 * medians[name]['median']:.2g} %" if name in medians else "–" for medians in errors.values()]
        cells += [size(medians[name]["median"]) if name in medians else "–" for medians in books.values()]
        cells += ["1" if name == EAGER else spread(medians.get(f"{name} / {EAGER}")) for medians in times.values()]
        lines.append(cells)
    head = [kind, "keeps, × its input", "less"]
    head += [f"error of the gradient on {device}" for device in errors]
    head += [f"allocated on {device}" for device in books]
    head += [f"time on {device}, × eager" for device in times]
    return table(head, lines)


def _timed() -> dict[str, Rows]:
    """By device, rows of both passes of the largest blocks; only of DTYPE if there are any."""
    cells = {}
    for device, rows in read("rivals-speed", mode="both").items():
        usual = [row for row in rows if row["dtype"] == DTYPE]
        cells[device] = largest(usual or rows)
    return cells


def _by_name(rows: Rows, kind: str, **fields: str) -> RowsByName:
    matching = (row for row in rows if row["what"] == kind and all(row[key] == value for key, value in fields.items()))
    return {row["implementation"]: row for row in matching}


def _kept(kept: RowsByName, name: str) -> list[str]:
    if name not in kept:
        return ["–", "–"]
    less = 1 - kept[name]["median"] / kept[EAGER]["median"]
    return [f"{kept[name]['median']:g}", f"{100 * less:.0f} %" if less else "–"]


def _note() -> str:
    parts = [
        f"In {DTYPE}, the hidden layer {WIDER} times as wide as the input, which counts as kept. Error: of the first "
        "weight's gradient, against float64."
    ]
    for row, *_ in _timed().values():
        tokens, width = row["size"].values()
        parts.append(
            f"Time: forward and backward on {place(row)}, {tokens} × {width} inputs of {row['dtype']}; median of"
            f" {row['runs']} rounds (20 % to 80 %)."
        )
    return " ".join(parts)
