"""The sections of `docs/approx_backprop.md`, from the rows of `benchmarks.approx_backprop`."""

from collections.abc import Iterable

from benchmarks.approx_backprop.batches import NETS
from benchmarks.approx_backprop.layers import LOST, WORST
from benchmarks.approx_backprop.nets import CHECKPOINT, EIGHT, FOUR, FUSED, PAPER, STOCK
from benchmarks.pages import Rows, by, of_any, place, read, spread, table
from kernels.memory.saved import size

GRADIENTS = ("dx", "dγ", "dβ", "dW", "dW" + WORST)
GIB = 2**30


def layers_section() -> str:
    """Bytes that layers save, and the error of each gradient."""
    rows = of_any("approx-backprop-layers")
    lines = []
    for (mode, way), of_way in by(rows, "mode", "implementation").items():
        medians = {(row["what"], row["unit"]): row["median"] for row in of_way}
        errors = (_error(medians, f"error of {name}") for name in GRADIENTS)
        lines.append([mode, way, f"{medians['kept', 'B']:.0f}", f"{medians['kept', 'units']:.2f}", *errors])
    head = ["", "kept", "B", "× input", *(f"error of {name}" for name in GRADIENTS)]
    seeds = max(row["runs"] for row in rows)
    return "\n".join([*table(head, lines), "", f"Errors are medians over {seeds} seeds."]) + "\n"


def _error(medians: dict[tuple[str, str], float], what: str) -> str:
    if (what, LOST) in medians:
        return "not finite"
    error = medians.get((what, "relative"))
    return "–" if error is None else f"{error:.1e}"


def models_section() -> str:
    """Bytes that models save, and how many times less than stock."""
    rows = of_any("approx-backprop-models")
    ways = list(dict.fromkeys(row["implementation"] for row in rows))
    lines = []
    for (name,), of_model in by(rows, "mode").items():
        medians = {row["implementation"]: row["median"] for row in of_model}
        lines.append([name, *(_less(medians.get(way), medians[STOCK]) for way in ways)])
    return "\n".join(table(["", *ways], lines)) + "\n"


def _less(kept: float | None, stock: float) -> str:
    if kept is None:
        return "–"
    return size(kept) if kept == stock else f"{size(kept)}, {stock / kept:.1f}×"


def batches_section() -> str:
    """The largest batches: counted, run on each GPU with rows, and the paper's."""
    lines: list[str] = []
    for device, rows in read("approx-backprop-batches").items():
        for (mode,), of_mode in by((row for row in rows if row["unit"] == "samples"), "mode").items():
            if mode == "counted" and lines:  # the same on every machine
                continue
            memory = of_mode[0]["size"]["memory"] / GIB
            place = "counted on fake tensors" if mode == "counted" else f"run on {device}"
            lines += ["", f"The largest batch within {memory:g} GiB, {place}:", "", *_batches(of_mode)]
            if mode == "counted":
                each = [row for row in rows if row["what"] == "each sample"]
                lines += ["", "and the bytes of each further sample:", "", *_samples(each)]
        times = [row for row in rows if row["unit"] == "s"]
        if times:
            lines += [
                "",
                f"Seconds of a step, of each sample, in the largest batch, on {device}:",
                "",
                *_seconds(times),
            ]
    return "\n".join(lines[1:]) + "\n"


def _of_nets(rows: Rows) -> dict[str, dict[str, float]]:
    """Medians by net and way."""
    names = {(net.depth, net.width): name for name, net in NETS.items()}
    by_net = by(({**row, "net": names[row["size"]["depth"], row["size"]["width"]]} for row in rows), "net")
    return {name: {row["implementation"]: row["median"] for row in of_net} for (name,), of_net in by_net.items()}


def _batches(rows: Rows) -> list[str]:
    by_net = _of_nets(rows)
    ways = list(dict.fromkeys(row["implementation"] for row in rows))
    lines = []
    for name, batch in by_net.items():
        exact, few = NETS[name].batches
        ratios = [_times(batch.get(way), batch.get(FUSED)) for way in (PAPER, FOUR)]
        cells = [*(f"{batch[way]:.0f}" for way in ways), *ratios, str(exact), str(few), _times(few, exact)]
        lines.append([name, *cells])
    against = [f"{way} / {FUSED}" for way in (PAPER, FOUR)]
    return table(["ResNet", *ways, *against, "published: exact", "published: 4 bits", "their ratio"], lines)


def _samples(rows: Rows) -> list[str]:
    ways = list(dict.fromkeys(row["implementation"] for row in rows))
    lines = ([name, *(size(each[way]) for way in ways)] for name, each in _of_nets(rows).items())
    return table(["ResNet", *ways], lines)


def _seconds(rows: Rows) -> list[str]:
    ways = list(dict.fromkeys(row["implementation"] for row in rows))
    lines = []
    for name, medians in _of_nets(rows).items():
        published = (f"{1000 * seconds:.1f} ms" for seconds in NETS[name].seconds)
        cells = (f"{1000 * medians[way]:.2f} ms" if way in medians else "–" for way in ways)
        lines.append([name, *cells, *published])
    return table(["ResNet", *ways, "published: exact", "published: 4 bits"], lines)


def _times(first: float | None, second: float | None) -> str:
    return f"{first / second:.1f}×" if first is not None and second else "–"


def times_section() -> str:
    """Times of forward and backward beside stock's, a table and a sentence for each device."""
    lines: list[str] = []
    for rows in read("approx-backprop-times").values():
        of_ratio = by((row for row in rows if row["unit"].startswith("ratio")), "what", "mode")
        stock = {(row["what"], row["mode"]): row["median"] for row in rows if row["implementation"] == STOCK}
        ways = list(dict.fromkeys(row["implementation"] for of_net in of_ratio.values() for row in of_net))
        cells = []
        for key, of_net in of_ratio.items():
            by_way = {row["implementation"]: row for row in of_net}
            cells.append([", ".join(key), f"{1000 * stock[key]:.1f} ms", *(spread(by_way.get(way)) for way in ways)])
        lines += [
            "",
            f"On {place(rows[0])}, medians of {rows[0]['runs']} rounds; in brackets the 20 % and 80 % quantiles:",
        ]
        lines += ["", *table(["", STOCK, *ways], cells), "", _words(of_ratio.values())]
    return "\n".join(lines[1:]) + "\n"


def _words(nets: Iterable[Rows]) -> str:
    """A sentence: the smallest and largest factor over stock's time for each way, over all nets."""
    by_way = by((row for of_net in nets for row in of_net), "implementation")
    least, parts = [], []
    for way in (EIGHT, FOUR, FUSED, CHECKPOINT):
        ratios = sorted(row["median"] for row in by_way.get((f"{way} / {STOCK}",), []))
        if ratios:
            least.append(ratios[0])
            parts.append(f"{way} takes {ratios[0]:.2f} to {ratios[-1]:.2f} × {STOCK}'s time")
    slower = f"All are slower than {STOCK} here: " if min(least) > 1 else ""
    return f"{slower}{', '.join(parts)}."
