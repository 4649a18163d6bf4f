"""Tables of the rows of `benchmarks.kernels`."""

from collections.abc import Iterable, Sequence

from benchmarks import parsers
from benchmarks.kernels.cases import MODES
from benchmarks.rows import Row

SMALLEST = 1 << 16  # elements; below this, factors measure mostly the cost of a call
LAYERS = parsers.KERNEL_WHATS[1:]


def factors(rows: Iterable[Row]) -> list[str]:
    """A line for each method: the least and most times stock eager's time, over sizes from SMALLEST on."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        if row.unit == "ratio of times" and row.size.get("n", SMALLEST) >= SMALLEST:
            groups.setdefault((row.what, row.implementation, row.mode), []).append(row.median)
    lines = []
    for what, implementation in dict.fromkeys(key[:2] for key in groups):
        parts = []
        for mode in MODES:
            if values := groups.get((what, implementation, mode)):
                parts.append(f"{mode} {min(values):.2f} to {max(values):.2f}")
        lines.append(f"{what:12} {implementation:30} {', '.join(parts)}")
    return lines


def block(rows: Sequence[Row]) -> str:
    """The rows of one function, dtype and size: a line for each method and mode; and the bytes that forward keeps."""
    first, by_key = rows[0], {(row.implementation, row.mode, row.unit): row.median for row in rows}
    size = ", ".join(f"{name} {_power(value)}" for name, value in first.size.items())
    lines = [f"{first.what}, {first.dtype}, {size}, {first.runs} runs"]
    for name, mode in dict.fromkeys((row.implementation, row.mode) for row in rows if row.unit == "s"):
        said = [f"{1e6 * by_key[name, mode, 's']:10.1f} us"]
        ratios = ((" / copy", "ratio of GB/s", "of the copy's GB/s"), (" / eager", "ratio of times", "x eager"))
        for rival, unit, words in ratios:
            if (ratio := by_key.get((f"{name}{rival}", mode, unit))) is not None:
                said.append(f"{ratio:.3f} {words}")
        lines.append(f"{name:22} {mode:8} {', '.join(said)}")
    for name in dict.fromkeys(row.implementation for row in rows if row.mode == "kept"):
        asked, expected = (by_key.get((name, "kept", unit)) for unit in ("asked B", "expected B"))
        differs = "" if expected in (None, asked) else f", expected {expected:.0f} (DIFFERS)"
        lines.append(f"{name:22} keeps {asked:.0f} B{differs}")
    return "\n".join(lines)


def _power(n: int) -> str:
    return f"2^{n.bit_length() - 1}" if n & (n - 1) == 0 and n >= 1024 else str(n)
