"""What `benchmarks.report` makes of the rows of `benchmarks.gpu`: tables, and sentences for as long as there are none.

A device counts as a GPU where its rows name CUDA's version.
"""

import re
from statistics import median

from benchmarks.gpu.ways import COMPILE, STOCK
from benchmarks.pages import Rows, by, place, read, table
from codegen.machine import GPUS
from kernels.memory.saved import size

NOISE = 0.15  # of the time predicted: bandwidth is a tenth below the nominal, and rounds differ
HOLDS = 0.9  # of the kernels, within NOISE, for the model to be called good
WORST = 6
EVERY = "bfloat16"


def on_gpus(name: str, mode: str | None = None) -> dict[str, Rows]:
    """The rows of a file, by the GPUs that have any."""
    return {device: rows for device, rows in read(name, mode).items() if "cuda" in rows[0]["versions"]}


def timed() -> list[str]:
    """The GPUs that kernels were timed on."""
    return list(on_gpus("kernels-time"))


def _listed(devices: list[str]) -> str:
    return " and ".join(devices)


def readme_note() -> str:
    """Who has timed the kernels, and where it stands."""
    tested = (
        "their arithmetic is tested in Triton's interpreter, at all 65,536 inputs of the 16-bit dtypes,\n"
        "their machine code is [counted](docs/slack.md)"
    )
    if devices := timed():
        return (
            f"The kernels were timed on {_listed(devices)}: [speed](docs/performance.md#on-a-gpu),"
            " [memory](docs/memory.md#on-a-gpu), [training](docs/trainers.md#on-a-gpu). On a\n"
            "CPU their plain-PyTorch twin runs.\n"
        )
    return (
        f"No GPU has timed the kernels yet: {tested}, and `make gpu` measures them where there is a GPU. On a\n"
        "CPU their plain-PyTorch twin is timed.\n"
    )


def performance_note() -> str:
    """What is on docs/performance.md."""
    if devices := timed():
        return f"Timings on {_listed(devices)} are [below](#on-a-gpu). First the model by which kernels were written, and counted, in\n"
    return "**No GPU timings are on this page, as none were taken.** It has the model by which kernels were written and counted, in\n"


def trainers_note() -> str:
    """What to expect of time, for docs/trainers.md."""
    if devices := list(on_gpus("gpu-training")):
        return f"- **Time on a GPU**: measured on {_listed(devices)}, [below](#on-a-gpu).\n"
    return (
        "- **Time on a GPU**: not measured yet. The kernels are one pass over memory each way, and most are [bound by\n"
        "  it](performance.md), by count of instructions.\n"
    )


def accuracy_note() -> str:
    """What was seen of outputs on a GPU, for docs/accuracy.md."""
    if devices := timed():
        return (
            f"- On {_listed(devices)}: the kernels' tests, at all 16-bit inputs; before a time was taken each kernel was held to"
            " its\n  twin. Other GPUs: nothing.\n"
        )
    return (
        "- On a GPU: nothing yet. The interpreter does what the kernel's text says; it does not show races or what a compiler"
        " makes of it.\n"
    )


def approximate_note() -> str:
    """What was measured of approximate backprop, for docs/approx_backprop.md."""
    if devices := list(on_gpus("gpu-training")):
        return f"- Timed on {_listed(devices)}, in [steps of training](trainers.md#on-a-gpu), and on no other GPU.\n"
    return (
        "- No GPU was at hand. The Triton kernels equal their PyTorch twin in Triton's interpreter, bit for bit, and compile for"
        " sm_80\n  and sm_90 without spills; they have not been timed.\n"
    )


def speed_section() -> str:
    """Times of kernels beside eager and a copy, by size; and whether issue slots tell them."""
    lines: list[str] = []
    for rows in on_gpus("kernels-time").values():
        alone = [row for row in rows if "n" in row["size"]]
        lines += ["", f"On {place(rows[0])}, medians of {alone[0]['runs']} rounds.", ""]
        for (what, dtype), them in by(alone, "what", "dtype").items():
            lines += [*_by_size(them, f"{what}, {dtype}: forward and backward, × eager", "both", "ratio of times", " / eager")]
            lines += ["", *_by_size(them, f"{what}, {dtype}: share of the copy's GB/s", "both", "ratio of GB/s", " / copy"), ""]
    for rows in on_gpus("rivals-speed").values():
        lines += [f"Forward and backward of blocks apart, on {place(rows[0])}, × eager:", "", *_blocks(rows), ""]
    lines += slots_lines()
    return "\n".join(lines).strip("\n") + "\n" if lines else "No rows of a GPU yet.\n"


def _by_size(rows: Rows, title: str, mode: str, unit: str, rival: str) -> list[str]:
    """A line for each method, a column for each size."""
    found = {
        (row["implementation"].removesuffix(rival), row["size"]["n"]): row["median"]
        for row in rows
        if (row["mode"], row["unit"]) == (mode, unit) and row["implementation"].endswith(rival)
    }
    sizes = sorted({n for _, n in found})
    cells = ([name, *(_cell(found.get((name, n))) for n in sizes)] for name in dict.fromkeys(name for name, _ in found))
    return table([title, *(f"2^{n.bit_length() - 1}" for n in sizes)], cells)


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _blocks(rows: Rows) -> list[str]:
    ratios = [row for row in rows if row["unit"] == "ratio of times" and row["mode"] != "both"]
    shapes = by(({**row, "shape": _shape(row)} for row in ratios), "what", "dtype", "shape")
    cells = []
    for (what, dtype, shape), them in shapes.items():
        found = {(row["implementation"].removesuffix(" / eager"), row["mode"]): row["median"] for row in them}
        for name in dict.fromkeys(name for name, _ in found):
            modes = (_cell(found.get((name, mode))) for mode in ("forward", "backward"))
            cells.append([f"{what}, {dtype}, {shape}", name, *modes])
    return table(["", "", "forward", "backward"], cells)


def _shape(row: dict[str, object]) -> str:
    return " × ".join(str(one) for one in row["size"].values())  # type: ignore[attr-defined]


def slots_lines() -> list[str]:
    """Predicted against measured."""
    lines: list[str] = []
    for device, rows in on_gpus("issue-slots").items():
        pairs = [(key, _predicted(key[-1]), measured) for key, measured in _pairs(rows)]
        if len(pairs) < 3:
            continue
        misses = {key: measured / wanted - 1 for key, wanted, measured in pairs}
        near = sum(abs(one) <= NOISE for one in misses.values())
        holds = "The model holds" if near >= HOLDS * len(misses) else "The model does not hold"
        bound = [wanted > 1 for _, wanted, _ in pairs]
        ranks = _correlation([_rank([key[-1] for key, *_ in pairs]), _rank([measured for *_, measured in pairs])])
        lines += [
            f"Issue slots, predicted against measured, on {place(rows[0])}, as {_modelled(device)}: a kernel is to take the"
            " time of a copy of its bytes, or, where it needs more issue slots than there are in that time, its share of them.",
            "",
            f"{holds}: {near} of {len(misses)} kernels are within {100 * NOISE:.0f} % of what it says (the goal is"
            f" {100 * HOLDS:.0f} %), half within {100 * median(abs(one) for one in misses.values()):.0f} %. It says of {sum(bound)}"
            f" that arithmetic takes the time. The shares and the times rank alike by {ranks:.2f} (1: the same order, 0: none).",
            "",
        ]
        worst = sorted(pairs, key=lambda pair: -abs(misses[pair[0]]))[:WORST]
        cells = [
            [f"{what}, {method}, {dtype}, {mode}", f"{100 * share:.0f} %", f"{wanted:.2f}", f"{measured:.2f}"]
            for (what, method, mode, dtype, share), wanted, measured in worst
        ]
        lines += [*table(["the worst", "share of issue slots", "predicted, × copy", "measured, × copy"], cells), ""]
    return lines


Key = tuple[str, str, str, str, float]  # function, method, mode, dtype, predicted share


def _pairs(rows: Rows) -> list[tuple[Key, float]]:
    """Each kernel and its time beside the copy."""
    key = ("what", "implementation", "mode", "dtype")
    shares = {tuple(row[one] for one in key): row["median"] for row in rows if row["unit"] == "predicted share"}
    found = []
    for row in rows:
        if row["unit"] == "ratio of times":
            name = (row["what"], row["implementation"].removesuffix(" / copy"), row["mode"], row["dtype"])
            found.append(((*name, shares[name]), row["median"]))
    return found


def _predicted(share: float) -> float:
    return max(1.0, share)


def _modelled(device: str) -> str:
    names = (gpu.name for gpu in GPUS if all(word in device.split("-") for word in gpu.name.lower().split()))
    return f"an {next(names, f'{GPUS[-1].name}, which it is not')}"


def _rank(values: list[float]) -> list[float]:
    """From 0, those that are equal in the middle of their places."""
    return [sum(other < value for other in values) + sum(other == value for other in values) / 2 for value in values]


def _correlation(columns: list[list[float]]) -> float:
    centred = [[value - sum(column) / len(column) for value in column] for column in columns]
    norms = [sum(value**2 for value in column) ** 0.5 for column in centred]
    product = sum(one * other for one, other in zip(*centred, strict=True))
    return product / (norms[0] * norms[1]) if all(norms) else 0.0


def memory_section() -> str:
    """Bytes of models by the allocator beside the accounting's, and where these differ."""
    lines: list[str] = []
    for rows in on_gpus("gpu-memory").values():
        cells, apart = [], []
        for (model, way), them in by(rows, "mode", "implementation").items():
            found = {row["what"]: row["median"] for row in them}
            accounted = found["kept, accounted"]
            off = found["kept, allocated"] / accounted - 1 if accounted else 0.0
            peaks = (size(found[f"peak, {what}"]) for what in ("accounted", "allocated"))
            cells.append([model, way, size(accounted), size(found["kept, allocated"]), f"{100 * off:+.1f} %", *peaks])
            apart += [[model, way, *pair] for pair in _operations(found)]
        head = ["", "", "kept: accounted", "by the allocator", "", "peak: accounted", "by the allocator"]
        lines += [f"On {place(rows[0])}:", "", *table(head, cells), ""]
        if apart:
            lines += ["Operations that keep otherwise than accounted, by more than 1 % of all that is kept:", ""]
            lines += [*table(["", "", "operation", "accounted", "recorded on the device"], apart), ""]
        else:
            lines += ["No operation keeps otherwise than accounted by more than 1 % of all that is kept.", ""]
    return "\n".join(lines).strip("\n") + "\n" if lines else "No rows of a GPU yet.\n"


def _operations(found: dict[str, float]) -> list[list[str]]:
    names = [match[1] for what in found if (match := re.fullmatch(r"kept by (.*), accounted", what))]
    pairs = ([found[f"kept by {name}, {who}"] for who in ("accounted", "recorded")] for name in names)
    return [[name or "(none)", *map(size, pair)] for name, pair in zip(names, pairs, strict=True)]


def training_section() -> str:
    """Steps a second, peaks and largest batches."""
    lines: list[str] = []
    for rows in on_gpus("gpu-training").values():
        cells = []
        for (model,), them in by(rows, "mode").items():
            found = {(row["implementation"], row["what"]): row for row in them}
            for way in dict.fromkeys(row["implementation"] for row in them):
                cells.append([model, way, *_of_way(found, way)])
        lines += [f"On {place(rows[0])}, random weights, in bfloat16 (BERT, ViT and ResNet-50 by autocast):", ""]
        head = ["", "", "batch", "steps/s", f"× {STOCK}", "peak", f"less than {STOCK}", "largest batch", f"× {STOCK}", "does not fit"]
        lines += [*table(head, cells), ""]
        lines += [f"The largest batch of what is compiled ({COMPILE}) was not looked for: each size is compiled anew.", ""]
    return "\n".join(lines).strip("\n") + "\n" if lines else "No rows of a GPU yet.\n"


def _of_way(found: dict[tuple[str, str], dict[str, object]], way: str) -> list[str]:
    def value(name: str, what: str) -> float | None:
        row = found.get((name, what))
        return None if row is None else float(row["median"])  # type: ignore[arg-type]

    batch = " × ".join(str(one) for one in found[way, "step"]["size"].values())  # type: ignore[attr-defined]
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


def _ratio(one: float | None, other: float | None) -> str:
    return f"{one / other:.2f}" if one and other else "–"
