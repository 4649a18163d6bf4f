"""The tables of `docs/results/compiled.md` that are made from the rows of `benchmarks.compression`."""

from collections.abc import Iterator
from typing import Any

from benchmarks.compression.ways import CHECKPOINT, COMPILED, COMPILED_CHECKPOINT, COMPRESSED, EAGER, OURS
from benchmarks.pages import Rows, by, place, read, spread, table
from benchmarks.parsers import BY_INDUCTOR, COMPRESSION_WAYS, FITTED

HEAD = ("", "kept, × eager", "peak, × eager", "error of the gradient", "time, × eager", "× compiled")


def section() -> str:
    """A table for each device, network and dtype."""
    lines: list[str] = []
    times = read("compression-times")
    for device, rows in _bytes().items():
        timed = by(times.get(device, []), "what", "dtype")
        for (name, dtype), of_net in by(rows, "what", "dtype").items():
            cells = _cells(of_net, timed.get((name, dtype), []))
            lines += ["", _title(name, dtype, of_net[0]["size"]), "", *table(HEAD, cells)]
        lines += ["", _note(rows, times.get(device, []))]
    return "\n".join(lines[1:]) + "\n"


def fits() -> str:
    """Of each network with a default plan: what plans promise beside what is measured, and rivals."""
    head = ("", "kept, × eager", "peak, × eager", "planned", "time, × eager", "planned", "error of the gradient")
    lines: list[str] = []
    times = read("compression-times")
    for device, rows in _bytes().items():
        timed = by(times.get(device, []), "what", "dtype")
        for (name, dtype), of_net in by(rows, "what", "dtype").items():
            ratios = {row["implementation"]: row for row in timed.get((name, dtype), []) if row["unit"] != "s"}
            if any(f"{way} / {EAGER}" in ratios for way in FITTED):
                lines += ["", _title(name, dtype, of_net[0]["size"]), "", *table(head, _fit_cells(of_net, ratios))]
    return "\n".join(lines[1:]) + "\n"


def _fit_cells(rows: Rows, ratios: dict[str, Any]) -> Iterator[list[str]]:
    values = {(row["implementation"], row["mode"], row["unit"]): row["median"] for row in rows}
    for way in (EAGER, *FITTED, *COMPRESSED, CHECKPOINT, COMPILED, COMPILED_CHECKPOINT, *BY_INDUCTOR):
        if way != EAGER and f"{way} / {EAGER}" not in ratios:
            continue
        fit = BY_INDUCTOR.get(way, way)
        shares = [f"{values[way, mode, 'B'] / values[EAGER, mode, 'B']:.3f}" for mode in ("kept", "peak")]
        peak, time = (values.get((way, "planned", unit)) for unit in ("B", "ratio of times"))
        yield [
            f"`fit={FITTED[fit]}`{way.removeprefix(fit)}" if fit in FITTED else way,
            *shares,
            "–" if peak is None else f"{peak / values[EAGER, 'peak', 'B']:.3f}",
            "1" if way == EAGER else spread(ratios[f"{way} / {EAGER}"]),
            "–" if time is None else f"{time:.2f}",
            f"{values[way, 'error', 'relative error']:.1e}",
        ]


def _bytes() -> dict[str, Rows]:
    """By device, the rows of the networks and dtypes that have an eager row to compare with."""
    by_device = {}
    for device, rows in read("compression-bytes").items():
        stock = {(row["what"], row["dtype"]) for row in rows if row["implementation"] == EAGER}
        by_device[device] = [row for row in rows if (row["what"], row["dtype"]) in stock]
    return {device: rows for device, rows in by_device.items() if rows}


def _title(name: str, dtype: str, size: dict[str, int]) -> str:
    layers = f"{name}, {size['layers']} blocks {size['width']} wide"
    inputs = f"{size['batch']}" + (f" × {size['length']}" if size["length"] > 1 else "")
    return f"{layers}, inputs {inputs}, {dtype}:"


def _cells(rows: Rows, timed: Rows) -> Iterator[list[str]]:
    of_ways = {
        way: {row["mode"]: row["median"] for row in of_way} for (way,), of_way in by(rows, "implementation").items()
    }
    ratios: dict[str, Any] = {row["implementation"]: row for row in timed if row["unit"] == "ratio of times"}
    stock = of_ways[EAGER]
    for way in (way for way in COMPRESSION_WAYS if way in of_ways):
        values = of_ways[way]
        shares = [f"{values[mode] / stock[mode]:.3f}" if mode in values else "–" for mode in ("kept", "peak")]
        own = f"**{way}**" if way in OURS else way
        seconds = ["1" if way == rival else spread(ratios.get(f"{way} / {rival}")) for rival in (EAGER, COMPILED)]
        yield [own, *shares, f"{values['error']:.1e}", *seconds]


def _note(rows: Rows, timed: Rows) -> str:
    count = f" Times: medians of {timed[0]['runs']} rounds, 20 % to 80 % in brackets." if timed else ""
    return (
        f"On {place(rows[0])}. Bytes by the allocator, over what is there before a step; gradients are there before. "
        f"Error: of the gradient of all weights, against eager in float32.{count}"
    )
