"""Compare a document with the packaged files of the same function.

Cheap enough for every load of a file: nothing is fitted or integrated, only numbers are compared.
"""

import bisect
from functools import lru_cache
from pathlib import Path
from typing import Any

from actfit.coefficients import store
from actfit.coefficients.functions import CATALOGUE
from actfit.coefficients.schema import CoefficientError, Document, problem

ROUNDING = 1e-9  # of levels and errors: files of other machines and quadratures differ in the last digits


def check_function(document: Document) -> None:
    """Raise CoefficientError if a function with a catalogue's name has another expression or other parameters."""
    function = document["function"]
    row = CATALOGUE.get(function["name"])
    if row is None:
        return
    if function["expr"] != row.expr:
        rule = f"must be {row.expr!r} where the name is {function['name']!r}"
        raise problem("function.expr", f"{rule}; call another function by another name", function["expr"])
    if function["params"].keys() != row.params.keys():
        raise problem("function.params", f"must be those of {function['name']}: {[*row.params]}", function["params"])


def check_numbers(document: Document) -> None:
    """Raise CoefficientError if the solution cannot be one of the function that the document names.

    Functions that are not in the catalogue, or have other parameters than there, pass.
    """
    function = document["function"]
    row = CATALOGUE.get(function["name"])
    if row is None or {key: float(value) for key, value in function["params"].items()} != dict(row.params):
        return
    if document["method"] != "invact":
        known = _finest(function["name"], store.DATA)
        if known is not None:
            _check_levels(document, known)
        if known is not None and document["method"] == "fewbit":
            _check_steps(document, known)
    else:
        known = _packaged(function["name"], f"invact-{document['options']['dtype']}", store.DATA)
        if known is not None:
            _check_branches(document["solution"], known["solution"])


def _check_levels(document: Document, known: Document) -> None:
    """Check levels, which are means of f': a packaged table bounds f' by its own levels and its largest error."""
    low, high = map(float, document["options"]["domain"])
    if not known["options"]["domain"][0] <= low < high <= known["options"]["domain"][1]:
        return  # beyond its domain f' may have other values
    levels, largest = known["solution"]["levels"], known["error"]["linf"]
    spare = largest + ROUNDING * max(map(abs, levels))
    least, most = levels[0] - spare, levels[-1] + spare
    key = "levels" if document["method"] == "fewbit" else "derivatives"
    for i, level in enumerate(document["solution"][key]):
        if not least <= level <= most:
            name = document["function"]["name"]
            rule = f"must be a value that the derivative of {name} has, from {least:.6g} to {most:.6g}"
            raise problem(f"solution.{key}[{i}]", rule, level)


def _check_steps(document: Document, known: Document) -> None:
    """Check that two tables of the same f' differ by no more than the sum of their largest errors."""
    low = max(float(fit["options"]["domain"][0]) for fit in (document, known))
    high = min(float(fit["options"]["domain"][1]) for fit in (document, known))
    tables = [fit["solution"] for fit in (document, known)]
    edges = sorted({low, high, *(edge for table in tables for edge in table["borders"] if low < edge < high)})
    allowed = sum(float(fit["error"]["linf"]) for fit in (document, known))
    allowed += ROUNDING * max(1.0, *map(abs, known["solution"]["levels"]))
    for edge in edges[1:]:  # intervals are closed on the right
        own, other = (_at(table, edge) for table in tables)
        if abs(own - other) > allowed:
            name, largest = document["function"]["name"], document["error"]["linf"]
            rule = (
                f"must be within error.linf of the derivative of {name}, which is about {other:.6g} at x = {edge:.6g}"
            )
            raise problem("solution", f"{rule}; linf is {largest}", own)


def _at(table: dict[str, Any], x: float) -> float:
    return float(table["levels"][table["codes"][bisect.bisect_left(table["borders"], x)]])


def _check_branches(solution: dict[str, Any], known: dict[str, Any]) -> None:
    """Check border, ranges and directions, which follow from f and are the same in every file of a dtype."""

    def fixed_parts(part: dict[str, Any]) -> list[Any]:
        return [part["border_side"], *((branch["x"], branch["y"], branch["direction"]) for branch in part["branches"])]

    if fixed_parts(solution) != fixed_parts(known):
        raise problem(
            "solution",
            f"must have border and branches as the packaged file has, {fixed_parts(known)}",
            fixed_parts(solution),
        )


@lru_cache(maxsize=64)
def _finest(function: str, root: Path) -> Document | None:
    """The packaged table with the most bits."""
    tables = (_packaged(function, f"fewbit-{bits}bit", root) for bits in range(8, 0, -1))
    return next((document for document in tables if document is not None), None)


@lru_cache(maxsize=256)
def _packaged(function: str, name: str, root: Path) -> Document | None:
    """The newest packaged file of this name; None if it is not valid, which is reported where the file is read."""
    versions = [entry for entry in store.available(root) if (entry.function, entry.name) == (function, name)]
    try:
        return store.load(versions[-1].path) if versions else None
    except (CoefficientError, OSError):
        return None
