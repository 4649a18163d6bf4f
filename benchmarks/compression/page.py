"""The sections of README and `docs/compression.md` that are made from the rows of `benchmarks.compression`."""

from collections.abc import Iterator
from typing import Any

from benchmarks.compression.ways import CHECKPOINT, COMPILED, COMPILED_CHECKPOINT, EAGER, OURS
from benchmarks.pages import Rows, by, place, read, spread, table
from benchmarks.parsers import COMPRESSION_WAYS

ROUNDING = 1e-5  # errors below come from another order of sums in float32
HEAD = ("", "kept, × eager", "peak, × eager", "error of the gradient", "time, × eager", "× compiled")
PLANNED = "planned 4 bits"
BRIEF = (COMPILED, CHECKPOINT, COMPILED_CHECKPOINT, "hook 4 bits", "compress 4 bits", "coded 4 bits", PLANNED)
TIMED = "coded 4 bits"  # a device is shown if this was timed there


def readme() -> str:
    """Peak, time and error of a few ways, in the dtype timed first, for each device on which TIMED was; GPUs first."""
    lines: list[str] = []
    times = {device: by(rows, "dtype", "what") for device, rows in read("compression-times").items()}
    for device, rows in sorted(_bytes().items(), key=lambda of_device: "cuda" not in of_device[1][0]["versions"]):
        timed = times.get(device, {})
        if not any(row["implementation"] == f"{TIMED} / {EAGER}" for of_net in timed.values() for row in of_net):
            continue
        dtype, _ = next(iter(timed))
        of_nets = by((row for row in rows if row["dtype"] == dtype), "dtype", "what")
        head = ["", *(f"{name}: {what}" for _, name in of_nets for what in ("peak", "time", "error"))]
        cells = []
        ways = {row["implementation"] for of_net in of_nets.values() for row in of_net}
        for way in (way for way in BRIEF if way in ways):
            line = [f"**ours**, {way}" if way in OURS else way]
            for key, of_net in of_nets.items():
                peaks, errors = (
                    {row["implementation"]: row["median"] for row in of_net if row["mode"] == mode}
                    for mode in ("peak", "error")
                )
                ratios = {row["implementation"]: row["median"] for row in timed.get(key, [])}
                line.append(f"{peaks[way] / peaks[EAGER]:.2f}" if way in peaks else "–")
                line.append(f"{ratios[name]:.2f}" if (name := f"{way} / {EAGER}") in ratios else "–")
                line.append(_percent(errors[way]) if way in errors else "–")
            cells.append(line)
        lines += [
            "",
            *table(head, cells),
            "",
            f"In {dtype} on {place(rows[0])}, × eager, over what is there before a step. Error: of the gradient, with"
            f" random weights.{' Planned: in no more bytes than coded.' * (PLANNED in ways)}",
        ]
    return "\n".join(lines[1:]) + "\n"


def _percent(error: float) -> str:
    """The error in percent; 0 below ROUNDING."""
    return "0" if error < ROUNDING else f"{100 * error:.2g} %"


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
