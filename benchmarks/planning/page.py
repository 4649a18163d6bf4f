"""The section of `docs/performance.md` made from the rows of `benchmarks.planning`."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from benchmarks.pages import Rows, by, place, read, spread, table
from benchmarks.planning import steps
from benchmarks.planning.errors import (
    BETWEEN,
    BITS,
    COMPILED,
    ERROR,
    GACT,
    KEPT,
    LESS,
    MENDED,
    PLAN,
    PREDICTED,
    RATIO,
    RIVALS,
    UNIFORM,
)
from kernels.memory.saved import size
from kernels.methods.planned import WIDTHS

MODES = [f"{times} × less" for times in LESS]
ACCURACY = f"{PREDICTED} / {ERROR}"
RowOf = dict[tuple[str, str], dict[str, Any]]  # rows by implementation and unit


def section() -> str:
    """Tables of errors, peaks, and bytes with times, for each device."""
    lines: list[str] = []
    for rows in read("planning").values():
        lines += [*_errors(rows, MODES), *_compiled(rows), *_peaks(rows), *_times(rows)]
    return "\n".join(lines[1:]) + "\n" if lines else "No rows yet.\n"


def _indexed(rows: Rows) -> RowOf:
    return {(row["implementation"], row["unit"]): row for row in rows}


def _errors(rows: Rows, modes: Sequence[str]) -> Iterator[str]:
    of_modes = by((row for row in rows if row["mode"] in modes), "mode", "what")
    if not of_modes:
        return
    cells = []
    for mode in modes:
        for (_, name), of_case in ((key, value) for key, value in of_modes.items() if key[0] == mode):
            cells.append([mode, name, *_case(_indexed(of_case))])
    head = ["kept", "", "plan", "predicted", "uniform", BETWEEN, GACT, *(f"{way} ÷ plan" for way in RIVALS)]
    yield from ("", *table(head, cells), "")
    runs = max(row["runs"] for row in rows if row["unit"] == ERROR)
    yield (
        f"Error of the gradient on samples that nothing was chosen by, in float32: medians over {runs} seeds, of ratios"
        " the least and largest, too. Uniform: the widest codes that fit; interpolated: between them and the next, at"
        " all of the budget. Between 8 bits and whole tensors the square of the error is taken to fall evenly."
    )
    yield from ("", _summary([row for row in rows if row["mode"] in modes]))


def _compiled(rows: Rows) -> Iterator[str]:
    modes = [mode + COMPILED for mode in MODES]
    if table_of := list(_errors(rows, modes)):
        yield from (
            "",
            "The same under `torch.compile`, by plans of what crosses in the graphs; × less than eager mode keeps:",
        )
        yield from table_of


def _case(row_of: RowOf) -> list[str]:
    def percent(way: str, unit: str = ERROR) -> str:
        return f"{100 * row_of[way, unit]['median']:.2g} %"

    bits = f" ({row_of[UNIFORM, BITS]['median']:.0f} bits)"
    ratios = [spread(row_of.get((f"{way} / {PLAN}", RATIO))) for way in RIVALS]
    return [percent(PLAN), percent(PLAN, PREDICTED), percent(UNIFORM) + bits, percent(BETWEEN), percent(GACT), *ratios]


def _summary(rows: Rows) -> str:
    """Sentences on the ratios that the goals are about; separate ones for budgets at which rivals are at their widest.

    There a rival has bytes to spare, and the ratio shows only that a plan may save tensors whole.
    """
    widths = {(row["mode"], row["what"]): row["median"] for row in rows if row["unit"] == BITS}

    def ratios(name: str, widest: bool) -> Rows:
        of_name = (row for row in rows if row["implementation"] == name and row["unit"] == RATIO)
        return [row for row in of_name if (widths[row["mode"], row["what"]] == WIDTHS[-1]) == widest]

    parts = []
    for widest, where in ((False, "Where 8 bits do not fit"), (True, "Where 8 bits fit everywhere")):
        for way in (BETWEEN, GACT):
            if of_way := ratios(f"{way} / {PLAN}", widest):
                parts.append(f"{where}, the error by {way} is {_spread(of_way)}.")
    off = [row["median"] for widest in (False, True) for row in ratios(ACCURACY, widest)]
    good = sum(1 / 1.5 <= value <= 1.5 for value in off)
    mended = sum(any(row["quantiles"]) for row in rows if row["unit"] == MENDED)
    parts.append(
        "GACT's rule has no choice there, as it gives 8 bits at most. It is measured at 2 bits here, not at 1: our"
        f" codes have no fewer. The prediction is {min(off):.2f} to {max(off):.2f} of what was"
        f" measured, within 1.5 times in {good} of {len(off)}. Mended to uniform bits: {mended} of {len(widths)}."
    )
    return " ".join(parts)


def _spread(ratios: Rows) -> str:
    middles, least = [row["median"] for row in ratios], min(row["quantiles"][0] for row in ratios)
    better = sum(value > 1 for value in middles)
    return (
        f"{median(middles):.2f} times the plan's in the median of {len(middles)}, larger in {better},"
        f" {min(middles):.2f} times at worst, {least:.3f} with the worst seed"
    )


def _peaks(rows: Rows) -> Iterator[str]:
    cells, smaller = [], 0
    for (name,), of_net in by((row for row in rows if row["mode"] == "accounting"), "what").items():
        row_of = _indexed(of_net)
        peaks = [row_of[way, steps.PEAK]["median"] for way in (steps.STOCK, steps.BUDGET, steps.PLAN, steps.CHECKPOINT)]
        kept = [row_of[way, steps.KEPT]["median"] for way in (steps.STOCK, steps.PLAN, steps.CHECKPOINT)]
        smaller += peaks[3] < peaks[2]
        held = "yes" if peaks[2] <= peaks[1] else "**no**"
        seconds = f"{row_of[steps.PLAN, steps.SECONDS]['median']:.1f}"
        cells.append([name, *map(size, map(int, peaks)), held, *map(size, map(int, kept)), seconds])
    if cells:
        head = ["", "peak", "budget", "peak by plan", "by checkpoint", "held", "kept", "by plan", "by checkpoint"]
        yield from ("", *table([*head, "seconds to plan"], cells), "")
        yield (
            "By accounting, on fake tensors; the budget is the middle of stock's peak and that of 2 bits everywhere."
            f" Checkpoints of all blocks, which are exact, have lower peaks in {smaller} of {len(cells)}."
        )


def _times(rows: Rows) -> Iterator[str]:
    timed = by((row for row in rows if row["mode"] == "time"), "what")
    for (name,), of_net in by((row for row in rows if row["mode"] == "allocator"), "what").items():
        row_of, ratios = _indexed(of_net), _indexed(timed.get((name,), []))
        cells = []
        for way in (way for way in steps.TIMED_WAYS if (way, steps.PEAK) in row_of):
            ratio = ratios.get((f"{way} / {steps.STOCK}", "ratio of times"))
            bytes = (size(int(row_of[way, unit]["median"])) for unit in (steps.KEPT, steps.PEAK))
            cells.append([way, *bytes, "1" if way == steps.STOCK else spread(ratio)])
        shape = of_net[0]["size"]
        budget = size(int(row_of[steps.BUDGET, KEPT]["median"]))
        peak = size(int(row_of[steps.PREDICTED, steps.PEAK]["median"]))
        yield from ("", f"{name}, inputs {shape['batch']} × {shape['length']}, with a budget of {budget} kept:", "")
        yield from table(["", "kept", "peak", "time, × stock"], cells)
        yield from ("", f"By the process's allocator, on {place(of_net[0])}. The plan predicted {peak} at the peak.")
