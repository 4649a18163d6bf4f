"""The tables that `benchmarks.report` makes of the rivals' rows: for README, and in full for docs/performance.md."""

from typing import Any

from benchmarks.baselines.blocks import ACT_LINEAR, CHECKPOINT, COMPILE, EAGER, LATE, LIGER, MLP, RECOMPUTING
from benchmarks.pages import Rows, by, of_any, read, spread, table

WEIGHT = "first.weight"
NAMES = {
    EAGER: "PyTorch, eager",
    COMPILE: "`torch.compile`",
    RECOMPUTING: "`torch.compile` with the flag",
    CHECKPOINT: "`torch.utils.checkpoint` of the block",
    LATE: "the same, from the activation on",
    LIGER: "Liger-Kernel",
    "invact": "**ours**, invact",
    "fewbit, 3 bits": "**ours**, fewbit, 3 bits",
    "fewbit, 1 bit": "**ours**, fewbit, 1 bit",
    ACT_LINEAR: "**ours**, `ActLinear`",
    "exact": "**ours**, exact",
}


def section(kind: str = MLP) -> str:
    """One kind of block: what is kept, how far gradients are off, and the time on each device."""
    kept = _by_name(of_any("rivals-memory"), kind, mode="counted")
    errors = _by_name(of_any("rivals-accuracy"), kind, mode=WEIGHT, dtype="bfloat16")
    times = {device: _largest(rows, kind) for device, rows in read("rivals-speed").items()}
    lines = []
    for name, row in kept.items():
        less = 1 - row["median"] / kept[EAGER]["median"]
        cells = [NAMES[name], f"{row['median']:g}", f"{100 * less:.0f} %" if less else "–"]
        error = errors[name]["median"]
        cells.append(f"{100 * error:.2g} %")
        for found in times.values():
            cells.append("1" if name == EAGER else spread(found.get(f"{name} / {EAGER}")))
        lines.append(cells)
    head = [
        kind,
        "keeps, × its input",
        "less",
        "error of the gradient",
        *(f"time on {device}, × eager" for device in times),
    ]
    return "\n".join([*table(head, lines), "", _note(times)]) + "\n"


def every_section() -> str:
    """All kinds of blocks."""
    kinds = [kind for (kind,) in by(of_any("rivals-memory"), "what")]
    return "\n".join(section(kind) for kind in kinds)


def _by_name(rows: Rows, kind: str, **wanted: str) -> dict[str, dict[str, Any]]:
    found = (row for row in rows if row["what"] == kind and all(row[key] == value for key, value in wanted.items()))
    return {row["implementation"]: row for row in found}


def _largest(rows: Rows, kind: str) -> dict[str, dict[str, Any]]:
    """The rows of the largest size that was timed."""
    rows = [row for row in rows if row["what"] == kind]
    most = max((row["size"]["tokens"] * row["size"]["width"] for row in rows), default=0)
    return {row["implementation"]: row for row in rows if row["size"]["tokens"] * row["size"]["width"] == most}


def _note(times: dict[str, dict[str, dict[str, Any]]]) -> str:
    parts = ["Error: of the first weight's gradient in bfloat16, against float64."]
    for device, found in times.items():
        if found:
            row = found[EAGER]
            versions = row["versions"]
            threads = " and one thread" if versions.get("threads") == "1" else ""
            parts.append(
                f"Time: forward and backward on {device} with torch {versions['torch']}{threads}, "
                f"{row['size']['tokens']} × {row['size']['width']} inputs of {row['dtype']}; "
                f"median of {row['runs']} rounds (20 % to 80 %)."
            )
    return " ".join(parts)
