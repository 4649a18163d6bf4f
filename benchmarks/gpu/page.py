"""The tables that `benchmarks.report` makes of the rows of `benchmarks.gpu`."""

import re

from benchmarks.gpu.slots import slots_lines
from benchmarks.gpu.ways import COMPILED, STOCK
from benchmarks.pages import Rows, by, on_gpus, place, table
from kernels.memory.saved import size

NO_TRAINING = (
    "No rows of `make gpu` yet. Steps of an MLP and of a Llama-like model on an H200, their peaks and errors, beside\n"
    "checkpoints and a hook, are in [README](../README.md#compiled).\n"
)


def speed_section() -> str:
    """Times of kernels beside eager and a copy, by size; and whether issue slots tell them."""
    lines: list[str] = []
    for rows in on_gpus("kernels-time").values():
        alone = [row for row in rows if "n" in row["size"]]
        lines += ["", f"On {place(rows[0])}, medians of {alone[0]['runs']} rounds.", ""]
        for (what, dtype), of_what in by(alone, "what", "dtype").items():
            lines += [
                *_by_size(
                    of_what, f"{what}, {dtype}: forward and backward, × eager", "both", "ratio of times", " / eager"
                )
            ]
            lines += [
                "",
                *_by_size(of_what, f"{what}, {dtype}: share of the copy's GB/s", "both", "ratio of GB/s", " / copy"),
                "",
            ]
    for rows in on_gpus("rivals-speed").values():
        lines += [f"Forward and backward of blocks apart, on {place(rows[0])}, × eager:", "", *_blocks(rows), ""]
    lines += slots_lines()
    return "\n".join(lines).strip("\n") + "\n" if lines else "No rows of a GPU yet.\n"


def _by_size(rows: Rows, title: str, mode: str, unit: str, rival: str) -> list[str]:
    """A line for each method, a column for each size."""
    medians = {
        (row["implementation"].removesuffix(rival), row["size"]["n"]): row["median"]
        for row in rows
        if (row["mode"], row["unit"]) == (mode, unit) and row["implementation"].endswith(rival)
    }
    sizes = sorted({n for _, n in medians})
    cells = (
        [name, *(_cell(medians.get((name, n))) for n in sizes)] for name in dict.fromkeys(name for name, _ in medians)
    )
    return table([title, *(f"2^{n.bit_length() - 1}" for n in sizes)], cells)


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _blocks(rows: Rows) -> list[str]:
    ratios = [row for row in rows if row["unit"] == "ratio of times" and row["mode"] != "both"]
    shapes = by(({**row, "shape": _shape(row)} for row in ratios), "what", "dtype", "shape")
    cells = []
    for (what, dtype, shape), of_shape in shapes.items():
        medians = {(row["implementation"].removesuffix(" / eager"), row["mode"]): row["median"] for row in of_shape}
        for name in dict.fromkeys(name for name, _ in medians):
            modes = (_cell(medians.get((name, mode))) for mode in ("forward", "backward"))
            cells.append([f"{what}, {dtype}, {shape}", name, *modes])
    return table(["", "", "forward", "backward"], cells)


def _shape(row: dict[str, object]) -> str:
    return " × ".join(str(length) for length in row["size"].values())  # type: ignore[attr-defined]


def memory_section() -> str:
    """Bytes of models by the allocator beside the accounting's, and where these differ."""
    lines: list[str] = []
    for rows in on_gpus("gpu-memory").values():
        cells, apart = [], []
        for (model, way), of_way in by(rows, "mode", "implementation").items():
            medians = {row["what"]: row["median"] for row in of_way}
            accounted = medians["kept, accounted"]
            off = medians["kept, allocated"] / accounted - 1 if accounted else 0.0
            peaks = (size(medians[f"peak, {what}"]) for what in ("accounted", "allocated"))
            cells.append([model, way, size(accounted), size(medians["kept, allocated"]), f"{100 * off:+.1f} %", *peaks])
            apart += [[model, way, *pair] for pair in _operations(medians)]
        head = ["", "", "kept: accounted", "by the allocator", "", "peak: accounted", "by the allocator"]
        lines += [f"On {place(rows[0])}:", "", *table(head, cells), ""]
        if apart:
            lines += ["Operations that keep otherwise than accounted, by more than 1 % of all that is kept:", ""]
            lines += [*table(["", "", "operation", "accounted", "recorded on the device"], apart), ""]
        else:
            lines += ["No operation keeps otherwise than accounted by more than 1 % of all that is kept.", ""]
    return "\n".join(lines).strip("\n") + "\n" if lines else "No rows of a GPU yet.\n"


def _operations(medians: dict[str, float]) -> list[list[str]]:
    names = [match[1] for what in medians if (match := re.fullmatch(r"kept by (.*), accounted", what))]
    pairs = ([medians[f"kept by {name}, {who}"] for who in ("accounted", "recorded")] for name in names)
    return [[name or "(none)", *map(size, pair)] for name, pair in zip(names, pairs, strict=True)]


def training_section() -> str:
    """Steps a second, peaks and largest batches."""
    lines: list[str] = []
    for rows in on_gpus("gpu-training").values():
        cells = []
        for (model,), of_model in by(rows, "mode").items():
            by_way = {(row["implementation"], row["what"]): row for row in of_model}
            for way in dict.fromkeys(row["implementation"] for row in of_model):
                cells.append([model, way, *_of_way(by_way, way)])
        lines += [f"On {place(rows[0])}, random weights, in bfloat16 (BERT, ViT and ResNet-50 by autocast):", ""]
        head = [
            "",
            "",
            "batch",
            "steps/s",
            f"× {STOCK}",
            "peak",
            f"less than {STOCK}",
            "largest batch",
            f"× {STOCK}",
            "does not fit",
        ]
        lines += [*table(head, cells), ""]
        lines += [
            f"What is compiled ({', '.join(COMPILED)}) is so block by block. Of ResNet-50, whose blocks differ, its"
            " largest batch was not looked for.",
            "",
        ]
    return "\n".join(lines).strip("\n") + "\n" if lines else NO_TRAINING


def _of_way(by_way: dict[tuple[str, str], dict[str, object]], way: str) -> list[str]:
    def value(name: str, what: str) -> float | None:
        row = by_way.get((name, what))
        return None if row is None else float(row["median"])  # type: ignore[arg-type]

    batch = " × ".join(str(length) for length in by_way[way, "step"]["size"].values())  # type: ignore[attr-defined]
    step, peak, largest = (value(way, what) for what in ("step", "peak", "largest batch"))
    stock = [value(STOCK, what) for what in ("step", "peak", "largest batch")]
    too_large = value(way, "batch too large")
    return [
        batch,
        "–" if not step else f"{1 / step:.2f}",
        _ratio(stock[0], step),
        "–" if peak is None else size(peak),
        "–" if peak is None or not stock[1] else f"{100 * (1 - peak / stock[1]):.0f} %",
        "not tried" if largest is None else f"{largest:.0f}",
        _ratio(largest, stock[2]),
        "not tried" if too_large is None else f"{too_large:.0f}",
    ]


def _ratio(first: float | None, second: float | None) -> str:
    return f"{first / second:.2f}" if first and second else "–"
