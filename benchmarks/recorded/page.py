"""The tables that `benchmarks.report` makes of its rows, for docs/fewbit.md."""

from typing import Any

from benchmarks.pages import Rows, read, table

TASKS = {"text": "the GPT on the text", "vit": "the ViT on the digits"}
BASE = "uniform"


def section() -> str:
    """Of each task: the error of the gradient at each stage by each table, and how it differs from the usual one's."""
    lines: list[str] = []
    for device, rows in read("recorded").items():
        runs = next(row["runs"] for row in rows if row["what"] == "recorded inputs")
        lines += [
            "",
            "Error of the gradient of all weights together, in % of it, and the change against the tables that come"
            f" with the package (uniform on [-10, 10]): median over 16 batches of each of {runs} trainings, on"
            f" {device}.",
        ]
        for task, name in TASKS.items():
            lines += ["", *_of_task([row for row in rows if row["mode"] == task], name)]
    return "\n".join(lines[1:]) + "\n"


def _of_task(rows: Rows, name: str) -> list[str]:
    inputs = {row["size"]["used"]: row["median"] for row in rows if row["what"] == "recorded inputs"}
    gradients = {_key(row): row for row in rows if row["what"] == "recorded gradient"}
    widths = sorted({row["size"]["bits"] for row in gradients.values()})
    cells = []
    for used, size in inputs.items():
        for label, implementation, recorded in _sources(used, list(inputs)):
            found = [gradients[implementation, recorded, used, bits]["median"] for bits in widths]
            usual = [gradients[BASE, None, used, bits]["median"] for bits in widths]
            stage = f"{used} steps, x of size {size:.2f}" if implementation == BASE else ""
            shown = [_cell(own, base, implementation) for own, base in zip(found, usual, strict=True)]
            cells.append([stage, label, *shown])
    heads = [f"{bits} bit{'s' * (bits > 1)}" for bits in widths]
    return table([f"{name}, used after", "tables", *heads], cells)


def _sources(used: int, stages: list[int]) -> list[tuple[str, str, int | None]]:
    """The label, the implementation and the steps of recording of each line."""
    recorded = [(f"recorded after {steps}", "recorded", steps) for steps in stages]
    return [
        ("usual", BASE, None),
        ("N(0, 1)", "normal", None),
        *(("**recorded there**" if steps == used else label, name, steps) for label, name, steps in recorded),
        ("recorded there, one for all", "together", used),
    ]


def _key(row: dict[str, Any]) -> tuple[str, int | None, int, int]:
    size = row["size"]
    return row["implementation"], size.get("recorded"), size["used"], size["bits"]


def _cell(own: float, base: float, implementation: str) -> str:
    shown = f"{100 * own:.2g}"
    return shown if implementation == BASE else f"{shown} ({100 * (own / base - 1):+.0f} %)"
