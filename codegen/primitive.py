"""Primitives, and the text of polynomials."""

from dataclasses import dataclass

from actfit.codegen.polynomials import coefficients


@dataclass(frozen=True)
class Primitive:
    """A function of an emitted module: one line of documentation, the body's lines, the primitives it calls."""

    doc: str
    body: tuple[str, ...]
    calls: tuple[str, ...] = ()
    arguments: str = "x"


def horner(name: str, variable: str, constants: tuple[str, ...]) -> list[str]:
    """Statements that make `name` the polynomial in `variable` with these coefficients, lowest first."""
    *rest, last = constants
    lines = []
    for constant in reversed(rest):
        lines.append(f"{name} = tl.fma({last}, {variable}, {constant})")
        last = name
    return lines or [f"{name} = {last}"]


def polynomial(name: str, variable: str, what: str, dtype: str) -> list[str]:
    """Statements for one of `polynomials.POLYNOMIALS`, with its coefficients for a dtype."""
    return horner(name, variable, tuple(map(repr, coefficients(what, dtype))))
