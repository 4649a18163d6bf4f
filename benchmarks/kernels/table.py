"""Tables of the rows of `benchmarks.kernels`, and whether they meet the project's goals."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks import parsers
from benchmarks.kernels.cases import MODES, OURS
from benchmarks.rows import Row

LARGE = 1 << 26  # elements, the size that the goals are about
SMALLEST = 1 << 16  # elements; below this, factors measure mostly the cost of a call
AT_MOST = {"fewbit-3": 0.90, "invact": 1.03, "forward-ad": 1.00}  # of eager's time, forward and backward
OF_COPY = 0.90  # share of the copy's GB/s that each of our methods must reach, forward and backward
LAYER = 1.01  # at most, of eager's time: an activation with a Linear, and in an MLP
LAYERS = parsers.KERNEL_WHATS[1:]


@dataclass(frozen=True)
class Goal:
    """A ratio that must be at most `limit`, or with `at_least` at least `limit`."""

    text: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        sign, mark = (">=" if self.at_least else "<="), ("pass" if self.met else "FAIL")
        return f"{mark}  {self.value:6.3f} {sign} {self.limit:.2f}  {self.text}"


def goals(rows: Iterable[Row]) -> list[Goal]:
    """The goals that these rows measure, each with its value."""
    rows = list(rows)
    made = []
    for what, dtype in dict.fromkeys((row.what, row.dtype) for row in rows):
        of_kind = [row for row in rows if (row.what, row.dtype) == (what, dtype)]
        if what.split()[-1] in LAYERS:
            made += _layer_goals(f"{what}, {dtype}", of_kind)
        else:
            made += _kernel_goals(f"{what}, {dtype}", [row for row in of_kind if row.size == {"n": LARGE}])
    return made


def _kernel_goals(title: str, rows: Sequence[Row]) -> list[Goal]:
    ratios = {row.implementation: row.median for row in rows if (row.unit, row.mode) == ("ratio of times", "both")}
    made = []
    for name, limit in AT_MOST.items():
        if f"{name} / eager" in ratios:
            text = f"{title}: {name} / eager, time of forward and backward"
            made.append(Goal(text, ratios[f"{name} / eager"], limit))
    for mode in MODES[:2]:
        shares = {row.implementation: row.median for row in rows if (row.unit, row.mode) == ("ratio of GB/s", mode)}
        ours = {name: shares[f"{name} / copy"] for name in OURS if f"{name} / copy" in shares}
        if ours:
            slowest = min(ours, key=ours.__getitem__)
            text = f"{title}: {slowest} / copy, GB/s of {mode}, the least of {len(ours)} methods"
            made.append(Goal(text, ours[slowest], OF_COPY, at_least=True))
    return made


def _layer_goals(title: str, rows: Sequence[Row]) -> list[Goal]:
    made = []
    for size in dict.fromkeys(tuple(row.size.items()) for row in rows):
        ratios = {
            row.implementation: row.median
            for row in rows
            if row.unit == "ratio of times"
            and tuple(row.size.items()) == size
            and not row.implementation.startswith("compile ")
        }
        if ratios:
            slowest = max(ratios, key=ratios.__getitem__)
            text = f"{title}, {_size(dict(size))}: {slowest}, the most of {len(ratios)} methods"
            made.append(Goal(text, ratios[slowest], LAYER))
    return made


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
    """The rows of one function, dtype and size as a table: a line for each method, its modes side by side."""
    by_key = {(row.implementation, row.mode, row.unit): row.median for row in rows}
    modes = [mode for mode in MODES if any(row.mode == mode for row in rows)]
    first = rows[0]
    columns = f"{'us':>10} {'GB/s':>7} {'of copy':>7} {'x eager':>7}"
    lines = [f"{first.what}, {first.dtype}, {_size(first.size)}, {first.runs} runs"]
    lines.append(f"{'':22}" + "".join(f" | {mode:<{len(columns)}}" for mode in modes))
    lines.append(f"{'':22}" + "".join(f" | {columns}" for _ in modes))
    for name in dict.fromkeys(row.implementation for row in rows if row.unit == "s"):
        cells = []
        for mode in modes:
            seconds = by_key[name, mode, "s"]
            speed = _cell(by_key.get((name, mode, "GB/s")), 7, ".1f")
            share = _cell(by_key.get((f"{name} / copy", mode, "ratio of GB/s")), 7, ".1%")
            ratio = _cell(by_key.get((f"{name} / eager", mode, "ratio of times")), 7, ".3f")
            cells.append(f" | {1e6 * seconds:10.1f} {speed} {share} {ratio}")
        lines.append(f"{name:22}" + "".join(cells))
    return "\n".join(line.rstrip() for line in [*lines, *_kept(rows)])


def _kept(rows: Sequence[Row]) -> list[str]:
    """Lines of the bytes that forward keeps, if measured, beside the expected bytes."""
    kept: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.mode == "kept":
            kept.setdefault(row.implementation, {})[row.unit] = row.median
    lines = []
    for name, by_unit in kept.items():
        expected = by_unit.get("expected B")
        said = (
            "" if expected is None else f", expected {expected:.0f}" + " (DIFFERS)" * (by_unit["asked B"] != expected)
        )
        lines.append(f"{name:22} keeps {by_unit['B']:.0f} B, asked for {by_unit['asked B']:.0f}{said}")
    return lines


def _cell(value: float | None, width: int, form: str) -> str:
    return f"{'' if value is None else format(value, form):>{width}}"


def _size(size: dict[str, int]) -> str:
    return ", ".join(f"{name} {_power(value)}" for name, value in size.items())


def _power(n: int) -> str:
    return f"2^{n.bit_length() - 1}" if n & (n - 1) == 0 and n >= 1024 else str(n)
