"""What a primitive is, and how polynomials are written."""

from dataclasses import dataclass

from codegen.polynomials import coefficients


@dataclass(frozen=True)
class Primitive:
    """A function of an emitted module: one line on what it is, the lines of its body, the primitives it calls."""

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
    """Likewise with one of `polynomials.POLYNOMIALS`, as a dtype has it."""
    return horner(name, variable, tuple(map(repr, coefficients(what, dtype))))
