"""What the numbers of a document must mean, beyond their shape: one function a method."""

import itertools
from collections.abc import Callable
from typing import Any, Final

from coefficients.schema import Document, problem


def check_meaning(document: Document) -> None:
    """Raise CoefficientError at the first field whose value contradicts the others.

    The document's shape must have been checked.
    """
    METHODS[document["method"]](document)


def _fewbit(document: Document) -> None:
    options, solution = document["options"], document["solution"]
    if not float(options["domain"][0]) < float(options["domain"][1]):
        raise problem("options.domain", "must be [a, b] with a < b", options["domain"])
    low, high = map(float, options["domain"])
    _borders(solution["borders"], low, high)
    _levels(solution["levels"], 2 ** options["bits"])
    _codes(solution["codes"], len(solution["borders"]) + 1, len(solution["levels"]))
    _error(document["error"], low, high)


def _borders(borders: list[float], low: float, high: float) -> None:
    for i, border in enumerate(borders):
        if not low < float(border) < high:
            raise problem(f"solution.borders[{i}]", f"must be strictly inside the domain [{low}, {high}]", border)
    # As floats: two large integers may differ and still be one float.
    for i, (left, right) in enumerate(itertools.pairwise(map(float, borders)), start=1):
        if not left < right:
            raise problem(f"solution.borders[{i}]", f"must be greater than the border before it, {left}", right)


def _levels(levels: list[float], most: int) -> None:
    if len(levels) > most:
        raise problem("solution.levels", f"must have at most 2**bits = {most} members", len(levels))
    for i, (left, right) in enumerate(itertools.pairwise(levels), start=1):
        if not left <= right:
            raise problem(f"solution.levels[{i}]", f"must not be less than the level before it, {left}", right)


def _codes(codes: list[int], intervals: int, levels: int) -> None:
    if len(codes) != intervals:
        raise problem("solution.codes", f"must have len(borders) + 1 = {intervals} members", len(codes))
    for i, code in enumerate(codes):
        if code >= levels:
            raise problem(f"solution.codes[{i}]", f"must be less than the number of levels, {levels}", code)
        if i and code == codes[i - 1]:
            raise problem(f"solution.codes[{i}]", "must differ from the code before it", code)
    unused = set(range(levels)) - set(codes)
    if unused:
        raise problem("solution.codes", f"must use every level, here also {min(unused)}", codes)


def _error(error: dict[str, Any], low: float, high: float) -> None:
    at, squared, bound = error["linf_at"], float(error["l2_squared"]), float(error["lower_bound"])
    if (at is None) != (error["linf"] == 0):
        raise problem("error.linf_at", f"must be null exactly when linf is 0, and linf is {error['linf']}", at)
    if at is not None and not low <= float(at) <= high:
        raise problem("error.linf_at", f"must be inside the domain [{low}, {high}]", at)
    if bound > squared:
        raise problem("error.lower_bound", f"must be at most l2_squared, {squared}", bound)
    gap = (squared - bound) / squared if squared else 0.0
    if float(error["gap"]) != gap:
        raise problem("error.gap", f"must be (l2_squared - lower_bound) / l2_squared = {gap!r}", error["gap"])


METHODS: Final[dict[str, Callable[[Document], None]]] = {"fewbit": _fewbit}
