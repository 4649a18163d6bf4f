"""The tables of `actfit list`."""

import math
from typing import Final

from actfit.coefficients.schema import Document
from actfit.coefficients.store import Entry

COLUMNS: Final = {
    "fewbit": ("function", "name", "version", "bits", "levels", "l2_squared", "linf", "gap"),
    "joint": ("function", "name", "version", "bits", "levels", "derivative_share", "output_share", "total", "gap"),
    "invact": (
        "function",
        "name",
        "version",
        "bits",
        "instructions",
        "rms",
        "floor_rms",
        "linf",
        "floor_linf",
        "bound",
    ),
}


def aligned(rows: list[tuple[str, ...]]) -> str:
    """Lines of columns: the first two are names, the others numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = "<<" + ">" * len(widths)
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=False))
        for row in rows
    )


def row(entry: Entry, document: Document) -> tuple[str, ...]:
    """The cells of a file, in the columns of its method."""
    solution, error = document["solution"], document["error"]
    if document["method"] == "invact":
        bits, count = len(solution["branches"]) - 1, solution["price"]["instructions"]
        bounds = [math.inf if bound is None else float(bound) for bound in error["bound"]]  # null: none was found
        errors = [*(float(error[key]) for key in COLUMNS["invact"][5:-1]), max(bounds)]
    else:
        levels = solution["levels" if document["method"] == "fewbit" else "derivatives"]
        bits, count = document["options"]["bits"], len(levels)
        errors = [float(error[key]) for key in COLUMNS[document["method"]][5:]]
    counts = (entry.version, bits, count)
    return (entry.function, entry.name, *map(str, counts), *(f"{value:.4g}" for value in errors))
