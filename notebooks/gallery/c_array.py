"""A fit as C: its numbers in arrays, which read back as the same numbers, and as comments how they are used."""

from collections.abc import Iterable, Sequence

import numpy as np

from fitting.words import counted
from notebooks.gallery.fits import Fit

ACROSS = 4  # numbers a line
FLOAT_MAX = float(np.finfo(np.float32).max)


def as_c(fit: Fit) -> str:
    """The arrays of a fit, in double and in float."""
    return _steps(fit) if fit.is_fewbit else _formulas(fit)


def _steps(fit: Fit) -> str:
    solution = fit.document["solution"]
    name = _name(fit)
    borders, codes, levels = (solution[key] for key in ("borders", "codes", "levels"))
    lo, hi = fit.document["options"]["domain"]
    parts = [
        _comment(
            f"{fit.entry.function}' by {fit.setting}: {counted(len(levels), 'level')}"
            f" on {counted(len(codes), 'interval')}; fitted on [{lo:g}, {hi:g}]",
            *_origin(fit),
            "q(x) = levels[codes[i]] for borders[i - 1] < x <= borders[i]; the first and the last interval go on.",
            "The float borders are rounded down: every float x has the code that it has with the double ones.",
        )
    ]
    if borders:
        parts.append(_array("double", f"{name}_borders", map(repr, borders)))
    parts.append(_array("unsigned char", f"{name}_codes", map(str, codes), across=16))
    parts.append(_array("double", f"{name}_levels", map(repr, levels)))
    if max(map(abs, (*borders, *levels))) > FLOAT_MAX:
        return "\n\n".join([*parts, _comment("There are no float arrays, as some of the numbers are none.")]) + "\n"
    if borders:
        parts.append(_array("float", f"{name}_borders_f", map(single, map(rounded_down, borders))))
    parts.append(_array("float", f"{name}_levels_f", map(single, map(np.float32, levels))))
    return "\n\n".join(parts) + "\n"


def _formulas(fit: Fit) -> str:
    solution = fit.document["solution"]
    branches = solution["branches"]
    lines = [
        f"{fit.entry.function}' from y = {fit.entry.function}(x), for {setting(fit)}",
        *_origin(fit),
        *_border(solution),
    ]
    arrays = []
    for side, branch in zip(sides(branches), branches, strict=True):
        if side:
            lines.append(f"{side}:")
        indent = "  " * bool(side)
        if branch["variable"] is not None:
            lines.append(f"{indent}s = {branch['variable']}")
        lines.append(f"{indent}q = {branch['expression']}")
        if branch["constants"]:
            arrays += _constants("_".join(filter(None, [_name(fit), side])), branch["constants"])
    return "\n\n".join([_comment(*lines), *arrays]) + "\n"


def _constants(name: str, constants: dict[str, float]) -> list[str]:
    values = list(constants.values())
    names = f"/* {', '.join(constants)} */\n"
    arrays = [names + _array("double", name, map(repr, values))]
    singles = list(map(np.float32, values))
    note = "" if list(map(float, singles)) == values else "/* rounded to float */\n"
    return [*arrays, note + _array("float", f"{name}_f", map(single, singles))]


def sides(branches: Sequence[object]) -> tuple[str, ...]:
    """The names of a formula's sides: an empty one where there is only one side."""
    return ("left", "right") if len(branches) == 2 else ("",)


def _border(solution: dict[str, object]) -> list[str]:
    if solution["border"] is None:
        return []
    sign = "<" if solution["border_side"] == "right" else "<="
    return [f"The left side is x {sign} {solution['border']!r}; one bit tells it."]


def single(value: np.float32) -> str:
    """A float32 number in C, with the fewest digits that identify it."""
    digits = str(value)
    return f"{digits if set(digits) & set('.e') else digits + '.0'}f"


def rounded_down(value: float) -> np.float32:
    """The largest float32 number that is not above the value."""
    nearest = np.float32(value)
    return np.nextafter(nearest, np.float32(-np.inf)) if float(nearest) > value else nearest


def _name(fit: Fit) -> str:
    """An identifier of C: gelu_fewbit_3bit."""
    name = f"{fit.entry.function}_{fit.entry.name}"
    name += f"_v{fit.entry.version}" if fit.entry.version > 1 else ""
    return "".join(sign if sign.isascii() and sign.isalnum() else "_" for sign in name)


def setting(fit: Fit) -> str:
    """The dtype of a formula, and whether it is the paper's."""
    return fit.setting + ", as published" * fit.is_published


def _origin(fit: Fit) -> list[str]:
    return [f"{fit.place}, sha256 {fit.document['sha256'][:16]}"]


def _comment(*lines: str) -> str:
    return "/* " + "\n * ".join(line.replace("*/", "* /") for line in lines) + "\n */"


def _array(kind: str, name: str, numbers: Iterable[str], across: int = ACROSS) -> str:
    texts = list(numbers)
    rows = [", ".join(texts[i : i + across]) for i in range(0, len(texts), across)]
    return f"static const {kind} {name}[{len(texts)}] = {{\n    " + ",\n    ".join(rows) + "\n};"
