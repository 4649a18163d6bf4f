"""The table of accuracy's rows for docs/results/accuracy.md."""

from benchmarks.accuracy.__main__ import METHODS, PLAIN
from benchmarks.pages import by, read, table

DTYPE = "bfloat16"
SHOWN = (PLAIN, *METHODS)


def section() -> str:
    """For every function in bfloat16: how many outputs are not f rounded, and the error of f'."""
    lines: list[str] = []
    for device, rows in read("accuracy").items():
        rows = [row for row in rows if row["dtype"] == DTYPE]
        versions = ", ".join(f"{name} {version}" for name, version in rows[0]["versions"].items() if name != "threads")
        lines += ["", f"On {device} ({versions}), all {rows[0]['size']['inputs']} numbers of {DTYPE}:", ""]
        cells = []
        for (function,), of_function in by(rows, "mode").items():
            medians = {(row["implementation"], row["unit"]): row["median"] for row in of_function}
            misses = [f"{medians[name, 'misses']:.0f}" for name in (PLAIN, next(iter(METHODS)))]
            cells.append([function, *misses, *(f"{medians[name, 'rms']:.2g}" for name in SHOWN)])
        head = ["", f"outputs not f rounded: {PLAIN}", "ours", *(f"f', RMS: {name}" for name in SHOWN)]
        lines += table(head, cells)
    return "\n".join(lines[1:]) + "\n"
