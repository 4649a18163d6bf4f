"""A fit as C: arrays that read back as the same numbers, with comments on their use."""

from collections.abc import Iterable, Sequence
from functools import singledispatch
from itertools import chain
from typing import Any

import numpy as np

from actfit.coefficients.cut_output import CutOutput
from actfit.fitting.words import counted
from notebooks.gallery.fits import Coded, FewBit, Fit, InvAct, Joint, Published

ACROSS = 4  # numbers a line
FLOAT_MAX = float(np.finfo(np.float32).max)


@singledispatch
def as_c(fit: Fit) -> str:
    """The arrays of a fit, in double and in float."""
    raise NotImplementedError(type(fit))


@as_c.register
def _few_bit(fit: FewBit) -> str:
    solution = fit.document["solution"]
    borders, codes, levels = (solution[key] for key in ("borders", "codes", "levels"))
    head = _head(
        fit,
        f"{fit.entry.function}' by {fit.setting}: {counted(len(levels), 'level')} on {counted(len(codes), 'interval')}",
        "q(x) = levels[codes[i]]",
    )
    return _tables(head, _name(fit), borders, {"codes": codes}, {"levels": levels})


@as_c.register
def _joint(fit: Joint) -> str:
    solution = fit.document["solution"]
    levels = {key: solution[key] for key in ("derivatives", "outputs")}
    function, intervals = fit.entry.function, counted(len(levels["outputs"]), "interval")
    head = _head(
        fit,
        f"{function}' and {function} by one code, {fit.setting}: {intervals}, lambda {fit.output_weight:g}",
        "The code of x is i, q(x) = derivatives[i] and y(x) = outputs[i]",
    )
    return _tables(head, _name(fit), solution["borders"], {}, levels)


def _head(fit: Coded, what: str, use: str) -> str:
    """The comment above the arrays of a table: what it is, and how an interval uses it."""
    lo, hi = fit.document["options"]["domain"]
    return _comment(
        f"{what}; fitted on [{lo:g}, {hi:g}]",
        *_origin(fit),
        f"{use} for borders[i - 1] < x <= borders[i]; the first and the last interval go on.",
        "The float borders are rounded down: every float x has the code that it has with the double ones.",
    )


def _tables(
    head: str, name: str, borders: list[float], codes: dict[str, list[int]], levels: dict[str, list[float]]
) -> str:
    """The arrays of a table after its comment; without borders if there is a single interval."""
    parts = [head]
    if borders:
        parts.append(_array("double", f"{name}_borders", map(repr, borders)))
    parts += [_array("unsigned char", f"{name}_{key}", map(str, values), across=16) for key, values in codes.items()]
    parts += [_array("double", f"{name}_{key}", map(repr, values)) for key, values in levels.items()]
    if max(map(abs, chain(borders, *levels.values()))) > FLOAT_MAX:
        return "\n\n".join([*parts, _comment("There are no float arrays, as some of the numbers are none.")]) + "\n"
    if borders:
        parts.append(_array("float", f"{name}_borders_f", map(single, map(rounded_down, borders))))
    parts += [
        _array("float", f"{name}_{key}_f", map(single, map(np.float32, values))) for key, values in levels.items()
    ]
    return "\n\n".join(parts) + "\n"


@as_c.register
def _formulas(fit: InvAct) -> str:
    solution = fit.document["solution"]
    branches = solution["branches"]
    lines = [
        f"{fit.entry.function}' from y = {fit.entry.function}(x), for {setting(fit)}",
        *_origin(fit),
        *_border(solution),
    ]
    arrays = []
    for name, branch in zip(branch_names(branches), branches, strict=True):
        if name:
            lines.append(f"{name}:")
        indent = "  " * bool(name)
        if branch["variable"] is not None:
            lines.append(f"{indent}s = {branch['variable']}")
        lines.append(f"{indent}q = {branch['expression']}")
        if branch["constants"]:
            arrays += _constants("_".join(filter(None, [_name(fit), name])), branch["constants"])
    return "\n\n".join([_comment(*lines), *arrays]) + "\n"


def _constants(name: str, constants: dict[str, float]) -> list[str]:
    values = list(constants.values())
    names = f"/* {', '.join(constants)} */\n"
    arrays = [names + _array("double", name, map(repr, values))]
    singles = list(map(np.float32, values))
    note = "" if list(map(float, singles)) == values else "/* rounded to float */\n"
    return [*arrays, note + _array("float", f"{name}_f", map(single, singles))]


def branch_names(branches: Sequence[object]) -> tuple[str, ...]:
    """The names of a formula's branches: left and right; an empty name for a single branch."""
    return ("left", "right") if len(branches) == 2 else ("",)


def _border(solution: dict[str, Any]) -> list[str]:
    if solution["border"] is None:
        return []
    sign = "<" if solution["border_side"] == "right" else "<="
    lines = [f"The left side is x {sign} {solution['border']!r}; one bit tells it."]
    return lines + second_bit(solution)


def second_bit(solution: dict[str, Any]) -> list[str]:
    """The output where a second bit does not tell how y was rounded; no line without one."""
    cut = CutOutput.of(solution)
    if cut is None:
        return []
    return [f"At y = {cut.output!r} y becomes {cut.inner!r} where |f(x)| < {abs(cut.border)!r}, else {cut.outer!r}."]


def single(value: np.float32) -> str:
    """A float32 number in C, with as few digits as identify it."""
    digits = str(value)
    return f"{digits if set(digits) & set('.e') else digits + '.0'}f"


def rounded_down(value: float) -> np.float32:
    """The largest float32 number that is not above the value."""
    nearest = np.float32(value)
    return np.nextafter(nearest, np.float32(-np.inf)) if float(nearest) > value else nearest


def _name(fit: Fit) -> str:
    """A C identifier such as gelu_fewbit_3bit."""
    name = f"{fit.entry.function}_{fit.entry.name}"
    name += f"_v{fit.entry.version}" if fit.entry.version > 1 else ""
    return "".join(sign if sign.isascii() and sign.isalnum() else "_" for sign in name)


def setting(fit: InvAct) -> str:
    """The dtype of a formula, marked if it is the paper's."""
    return fit.setting + ", as published" * isinstance(fit, Published)


def _origin(fit: Fit) -> list[str]:
    return [f"{fit.place}, sha256 {fit.document['sha256'][:16]}"]


def _comment(*lines: str) -> str:
    return "/* " + "\n * ".join(line.replace("*/", "* /") for line in lines) + "\n */"


def _array(kind: str, name: str, numbers: Iterable[str], across: int = ACROSS) -> str:
    texts = list(numbers)
    rows = [", ".join(texts[i : i + across]) for i in range(0, len(texts), across)]
    return f"static const {kind} {name}[{len(texts)}] = {{\n    " + ",\n    ".join(rows) + "\n};"
