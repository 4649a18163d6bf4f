"""Rules for the numbers of a document beyond its shape: one function for each method."""

import itertools
import re
from collections.abc import Callable
from typing import Any, Final

from actfit.coefficients.schema import Document, member, problem

HALF: Final = re.compile("[\ud800-\udfff]")  # half a surrogate pair; Python reads a whole pair as one character


def check_meaning(document: Document) -> None:
    """Raise CoefficientError at the first field whose value contradicts the others.

    The document's shape must have been checked.
    """
    _check_text(document, "")
    label = document["options"]["weight"]
    if label.startswith("samples:") and not re.fullmatch("samples:[0-9a-f]{16}", label):
        raise problem("options.weight", "must be samples: and the first 16 digits of their hash", label)
    METHODS[document["method"]](document)


def _check_text(value: Any, field: str) -> None:
    """Refuse half of a surrogate pair: JSON can spell it, but it is no character."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_text(key, member(field, key))
            _check_text(inner, member(field, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            _check_text(inner, f"{field}[{i}]")
    elif isinstance(value, str) and HALF.search(value):
        raise problem(field, "must be text, without half a surrogate pair", value)


def _domain(document: Document) -> tuple[float, float]:
    """The domain's ends, after a check of them and of the borders inside."""
    low, high = map(float, document["options"]["domain"])
    if not low < high:
        raise problem("options.domain", "must be [a, b] with a < b", document["options"]["domain"])
    _borders(document["solution"]["borders"], low, high)
    return low, high


def _fewbit(document: Document) -> None:
    options, solution = document["options"], document["solution"]
    low, high = _domain(document)
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
    _gap(error, "l2_squared", squared, bound)


def _gap(error: dict[str, Any], key: str, squared: float, bound: float) -> None:
    if bound > squared:
        raise problem("error.lower_bound", f"must be at most {key}, {squared}", bound)
    gap = (squared - bound) / squared if squared else 0.0
    if float(error["gap"]) != gap:
        raise problem("error.gap", f"must be ({key} - lower_bound) / {key} = {gap!r}", error["gap"])


def _joint(document: Document) -> None:
    options, solution, error = document["options"], document["solution"], document["error"]
    _domain(document)
    intervals = len(solution["borders"]) + 1
    if intervals > 2 ** options["bits"]:
        raise problem("solution.borders", f"must be fewer than 2**bits = {2 ** options['bits']}", intervals - 1)
    for key in ("derivatives", "outputs"):
        if len(solution[key]) != intervals:
            rule = f"must have len(borders) + 1 = {intervals} members"
            raise problem(f"solution.{key}", rule, len(solution[key]))
    total = float(error["derivative"]) + float(options["lambda"]) * float(error["output"])
    if float(error["total"]) != total:
        raise problem("error.total", f"must be derivative + lambda output = {total!r}", error["total"])
    _gap(error, "total", total, float(error["lower_bound"]))


def _cut(cut: dict[str, float], options: Document) -> None:
    if "bits" not in options:
        raise problem("solution.cut", "must be left out without options.bits", cut)
    inner, border, outer = (float(cut[key]) / float(cut["output"] or 1.0) for key in ("inner", "border", "outer"))
    if not 0 < inner <= border <= outer:
        raise problem("solution.cut", "must have 0 < inner / output <= border / output <= outer / output", cut)


def _invact(document: Document) -> None:
    solution, error = document["solution"], document["error"]
    branches, border = solution["branches"], solution["border"]
    if (border is None) != (len(branches) == 1):
        raise problem("solution.border", f"must be null exactly when there is one branch, here {len(branches)}", border)
    if (border is None) != (solution["border_side"] is None):
        raise problem("solution.border_side", "must be null exactly when the border is", solution["border_side"])
    if "bits" in document["options"] and (border is None or document["options"]["dtype"] == "float32"):
        rule = "must be left out for one branch, and for float32, in which nothing is known of how y was rounded"
        raise problem("options.bits", rule, document["options"]["bits"])
    if "cut" in solution:
        _cut(solution["cut"], document["options"])
    ends = [None, border, None] if len(branches) == 2 else [None, None]
    for i, branch in enumerate(branches):
        if branch["x"] != ends[i : i + 2]:
            raise problem(f"solution.branches[{i}].x", f"must be {ends[i : i + 2]}, from the border", branch["x"])
        low, high = branch["y"]
        if low is not None and high is not None and float(low) > float(high):
            raise problem(f"solution.branches[{i}].y", "must be [lowest, highest]", branch["y"])
        _names(branch, f"solution.branches[{i}]")
    price = solution["price"]
    total = price["fma"] + price["other"] + price["special"] + 8 * price["division"]
    if price["instructions"] != total:
        raise problem("solution.price.instructions", f"must be fma + other + special + 8 division = {total}", price)
    for i, (row, later) in enumerate(itertools.pairwise(solution["front"]), start=1):
        if later["instructions"] < row["instructions"]:
            raise problem(f"solution.front[{i}].instructions", "must not be less than before", later["instructions"])
    for key in ("sampled", "bound"):
        if len(error[key]) != len(branches):
            raise problem(f"error.{key}", f"must have one member a branch, {len(branches)}", error[key])
    for i, (sampled, bound) in enumerate(zip(error["sampled"], error["bound"], strict=True)):
        if bound is not None and float(bound) < float(sampled):
            raise problem(f"error.bound[{i}]", f"must be at least what was sampled, {sampled}", bound)
    for key in ("rms", "linf"):
        if float(error[key]) < float(error[f"floor_{key}"]):
            raise problem(f"error.{key}", f"must be at least the floor, {error[f'floor_{key}']}", error[key])


def _names(branch: dict[str, Any], where: str) -> None:
    """Check that the constants are those that the formula and its variable use."""
    variable = branch["variable"]
    used = set(_WORD.findall(f"{branch['expression']} {variable or ''}"))
    if ("s" in set(_WORD.findall(branch["expression"]))) and variable is None:
        raise problem(f"{where}.variable", "must say what s is, which the expression uses", variable)
    for name in branch["constants"]:
        if not _WORD.fullmatch(name) or name in ("y", "s"):
            raise problem(f"{where}.constants", "must have names that begin with a letter, other than y and s", name)
        if name not in used:
            raise problem(f"{where}.constants", "must all be used by the expression or the variable", name)


_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

METHODS: Final[dict[str, Callable[[Document], None]]] = {"fewbit": _fewbit, "joint": _joint, "invact": _invact}
