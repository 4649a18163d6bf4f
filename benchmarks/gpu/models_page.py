"""The tables of whole models, made from the rows of `benchmarks.gpu.models`."""

from collections.abc import Iterable
from typing import Any

from actfit.kernels.memory.saved import size
from benchmarks.gpu.parsers import COMPILED_MODEL_WAYS, MODEL_WAYS
from benchmarks.pages import Rows, by, on_gpus, place, table
from benchmarks.parsers import FITTED

EAGER = "eager"
TITLES = {
    "compress exact": "**`compress(model)`**",
    "compress 8 bits": "**`compress(model, bits=8)`**",
    "compress 4 bits": "**`compress(model, bits=4)`**",
    **{f"coded {bits} bits": f"**layers with `actfit.options(bits={bits})`**" for bits in (8, 4)},  # no longer measured
    **{way: f"**`compress(model, fit={share}, …)`**" for way, share in FITTED.items()},
    "compress exact compiled": "**`compress(model, compiled=True)`**",
    **{f"compress {bits} bits compiled": f"**`compress(model, bits={bits}, compiled=True)`**" for bits in (8, 4)},
    **{f"{way} compiled": f"**`compress(model, fit={share}, compiled=True, …)`**" for way, share in FITTED.items()},
    "checkpoint": "checkpoint of each layer",
    "compiled": "layers compiled",
    "compiled checkpoint": "the same, checkpointed",
}
MODELS = {
    "llama": ("Llama 1B", "Llama 3.2 1B with head and loss"),
    "llama-lora": ("LoRA", "The same by LoRA, rank 16, of all linear layers"),
    "llama-bare": ("Llama without head", "The same without its head: 16 layers, 2048 wide"),
    "vit-l": ("ViT-L", "ViT-L/16"),
}
BRIEF = ("llama", "vit-l")
NONE = "No rows of a GPU yet.\n"


def medians(rows: Rows) -> dict[str, dict[str, dict[str, float]]]:
    """By model and way, what was measured; models with an eager row, in the order of MODELS."""
    models: dict[str, dict[str, dict[str, float]]] = {}
    for (model, way), of_way in by(rows, "mode", "implementation").items():
        models.setdefault(model, {})[way] = {row["what"]: row["median"] for row in of_way}
    return {model: models[model] for model in MODELS if "step" in models.get(model, {}).get(EAGER, {})}


def _known(ways: Iterable[str]) -> list[str]:
    measured = set(ways)
    return [way for way in dict.fromkeys((*MODEL_WAYS, *COMPILED_MODEL_WAYS, *TITLES)) if way in measured]


def _error(value: float) -> str:
    return "0" if not value else f"{100 * value:.2g} %"


def readme() -> str:
    """Peak, time and error of the models of BRIEF."""
    lines: list[str] = []
    for rows in on_gpus("gpu-models").values():
        models = {model: ways for model, ways in medians(rows).items() if model in BRIEF}
        head = ["", *(f"{MODELS[model][0]}: {what}" for model in models for what in ("peak", "time", "error"))]
        cells = []
        for way in _known(way for ways in models.values() for way in ways):
            cells.append([TITLES.get(way, way)])
            for ways in models.values():
                cells[-1] += _brief(ways.get(way), ways[EAGER])
        note = (
            f"In bfloat16 on {place(rows[0])}. Peak over weights; time: of forward and backward, × eager; error: of the"
            " gradient, against eager's. Attention's backward alone differs from run to run: checkpoints show by how"
            " much."
        )
        lines += ["", *table(head, cells), "", note]
    return "\n".join(lines[1:]) + "\n" if lines else "No GPU has timed whole models yet; `make gpu` does.\n"


def _brief(measured: dict[str, float] | None, eager: dict[str, float]) -> list[str]:
    if measured is None or "step" not in measured:
        return ["–"] * 3
    return [size(measured["peak"]), f"{measured['step'] / eager['step']:.2f}", _error(measured["error"])]


def section() -> str:
    """A table for each model."""
    lines: list[str] = []
    head = ["", "kept", "peak", "time of a step", "× eager", "error of the gradient"]
    for rows in on_gpus("gpu-models").values():
        transformers = rows[0]["versions"]["transformers"]
        lines += [f"In bfloat16 on {place(rows[0])} and transformers {transformers}, with random weights:", ""]
        for model, ways in medians(rows).items():
            row: dict[str, Any] = next(row for row in rows if row["mode"] == model)
            batch, *rest = row["size"].values()
            title = f"{MODELS[model][1]}, {batch} × {' × '.join(map(str, rest))}"
            cells = [_cells(way, ways[way], ways[EAGER]) for way in _known(ways) if "step" in ways[way]]
            lines += [*table([title, *head[1:]], cells), ""]
    return "\n".join(lines).strip("\n") + "\n" if lines else NONE


def _cells(way: str, measured: dict[str, float], eager: dict[str, float]) -> list[str]:
    times = [f"{1000 * measured['step']:.0f} ms", f"{measured['step'] / eager['step']:.2f}"]
    kept = [size(measured[what]) for what in ("kept", "peak")]
    return [TITLES.get(way, way), *kept, *times, _error(measured["error"])]
