"""The tables of the rows of `benchmarks.recorded` for docs/fewbit.md."""

from typing import Any

from benchmarks.pages import Rows, read, table
from benchmarks.recorded import JUDGED

TASKS = {"text": "GPT on the text", "vit": "ViT on the digits"}
BASE = "uniform"
Line = tuple[str, str, int | None]  # label, implementation, steps done when inputs were recorded


def section() -> str:
    """For each task: the errors of the gradient and of f', by each table at each stage."""
    lines: list[str] = []
    for device, rows in read("recorded").items():
        runs = next(row["runs"] for row in rows if row["what"] == "recorded inputs")
        lines += [
            "",
            "Error of the gradient of all weights together, in % of it, and in brackets its change against the tables"
            f" that come with the package, for x even on [-10, 10]: median of {JUDGED} batches of each of {runs}"
            f" trainings, on {device}.",
        ]
        for task, name in TASKS.items():
            lines += ["", *_gradients([row for row in rows if row["mode"] == task], name)]
        lines += ["", "Error of f' over the same inputs: its root mean square, and its slope, mean x·d / mean x²."]
        for task, name in TASKS.items():
            lines += ["", *_derivatives([row for row in rows if row["mode"] == task], name)]
    return "\n".join(lines[1:]) + "\n"


def _gradients(rows: Rows, name: str) -> list[str]:
    errors = _medians(rows, "recorded gradient", "of the gradient")
    stages, widths = _stages(rows), sorted({bits for *_, bits in errors})
    cells = []
    for used, size in stages.items():
        for label, implementation, recorded in _lines(used, list(stages)):
            own = [errors[implementation, recorded, used, bits] for bits in widths]
            usual = [errors[BASE, None, used, bits] for bits in widths]
            stage = f"{used} steps; x of size {size:.2f}" if implementation == BASE else ""
            shown = [_cell(mine, base, implementation) for mine, base in zip(own, usual, strict=True)]
            cells.append([stage, label, *shown])
    return table([f"{name}, used after", "tables", *_bit_titles(widths)], cells)


def _derivatives(rows: Rows, name: str) -> list[str]:
    errors, slopes = (_medians(rows, "recorded derivative", unit) for unit in ("rms", "slope"))
    stages, widths = _stages(rows), sorted({bits for *_, bits in errors})
    cells = []
    for used in stages:
        for label, implementation, recorded in _lines(used, [used])[:-1]:
            keys = [(implementation, recorded, used, bits) for bits in widths]
            stage = f"{used} steps" if implementation == BASE else ""
            cells.append([stage, label, *(f"{errors[key]:.2g}, {slopes[key]:+z.3f}" for key in keys)])
    return table([f"{name}, used after", "tables", *_bit_titles(widths)], cells)


def _stages(rows: Rows) -> dict[int, float]:
    """The root mean square of the inputs, by the steps done."""
    return {row["size"]["used"]: row["median"] for row in rows if row["what"] == "recorded inputs"}


def _medians(rows: Rows, what: str, unit: str) -> dict[tuple[str, int | None, int, int], float]:
    """Medians by implementation, steps done when inputs were recorded and when the tables are used, and bits."""
    return {_key(row): row["median"] for row in rows if (row["what"], row["unit"]) == (what, unit)}


def _key(row: dict[str, Any]) -> tuple[str, int | None, int, int]:
    size = row["size"]
    return row["implementation"], size.get("recorded"), size["used"], size["bits"]


def _lines(used: int, stages: list[int]) -> list[Line]:
    recorded: list[Line] = [
        ("recorded there" if steps == used else f"recorded after {steps}", "recorded", steps) for steps in stages
    ]
    return [
        ("usual", BASE, None),
        ("N(0, 1)", "normal", None),
        *recorded,
        ("recorded there, without slope", "level", used),
        ("recorded there, one for all", "together", used),
    ]


def _bit_titles(widths: list[int]) -> list[str]:
    return [f"{bits} bit{'s' * (bits > 1)}" for bits in widths]


def _cell(own: float, base: float, implementation: str) -> str:
    shown = f"{100 * own:.2g}"
    return shown if implementation == BASE else f"{shown} ({100 * (own / base - 1):+z.0f} %)"
