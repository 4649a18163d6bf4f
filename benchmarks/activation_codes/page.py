"""The section of docs/joint.md made from the rows of `benchmarks.activation_codes`."""

from collections.abc import Iterator
from statistics import geometric_mean

from benchmarks.pages import Rows, by, place, read, table

NAME = "activation-codes"  # of the file
BITS = (2, 3, 4, 5, 6, 8)
ERROR, SPREAD, INPUT = "relative error", "root mean square", "x"
TWO_TABLES, IN_GROUPS = "two tables, for f' and for f", "x by minimum and step"
Errors = dict[str, dict[int, float]]  # by implementation and bits


def section() -> str:
    """For each device: ratios over all networks, and the errors of each."""
    lines: list[str] = []
    for rows in read(NAME).values():
        errors = {name: _errors(of_net) for (name,), of_net in by(rows, "what").items()}
        spread = {row["what"]: row["median"] for row in rows if row["unit"] == SPREAD}
        widths = [f"{bits} bits" for bits in BITS]
        titles = [f"Error, × that of {IN_GROUPS}", *widths]
        nets = list(errors.values())
        lines += ["", *table(titles, _ratios(nets)), "", f"{_note(rows)} {_answer(nets)}", ""]
        cells = [line for name, of_net in errors.items() for line in _cells(name, spread[name], of_net)]
        lines += table(["Error, %", "code", *widths], cells)
    return "\n".join(lines[1:]) + "\n" if lines else "No rows yet.\n"


def _errors(rows: Rows) -> Errors:
    errors: Errors = {}
    for row in rows:
        if row["unit"] == ERROR:
            errors.setdefault(row["implementation"], {})[row["size"]["bits"]] = row["median"]
    return errors


def _ratios(nets: list[Errors]) -> Iterator[list[str]]:
    """The geometric means over networks."""
    for way in nets[0]:
        yield [way, *(f"{_ratio(nets, way, IN_GROUPS, bits):.2f}" for bits in BITS)]


def _ratio(nets: list[Errors], way: str, other: str, bits: int) -> float:
    return geometric_mean(errors[way][bits] / errors[other][bits] for errors in nets)


def _answer(nets: list[Errors]) -> str:
    """By how much the best code wins over two tables."""
    parts = []
    for bits in BITS:
        best = min(nets[0], key=lambda way: _ratio(nets, way, IN_GROUPS, bits))
        parts.append(f"{_ratio(nets, TWO_TABLES, best, bits):.1f} times with {bits} bits ({best})")
    return f"Two tables err as much as the best code {', '.join(parts)}."


def _cells(name: str, spread: float, errors: Errors) -> Iterator[list[str]]:
    """The lines of a network; the least error of each width is bold."""
    least = {bits: min(of_way[bits] for of_way in errors.values()) for bits in BITS}
    for way, of_way in errors.items():
        shown = ((f"{100 * of_way[bits]:.2g}", of_way[bits] == least[bits]) for bits in BITS)
        yield [name, way, *(f"**{text}**" if best else text for text, best in shown)]
        name = f"x of size {spread:.2g}" if name and not name.startswith("x of") else ""


def _note(rows: Rows) -> str:
    networks = len(by(rows, "what"))
    runs = max(row["runs"] for row in rows)
    return f"Geometric means over {networks} networks; medians of {runs} seeds, on {place(rows[0])}, in float32."
