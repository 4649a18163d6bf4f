"""A form: a formula for g in y and s with named constants. What engines produce, and what is refitted and priced.

s is the variable in which g is smooth: the root of the distance from the anchor (see `branches`).
"""

from dataclasses import dataclass

from sympy import Expr, Symbol

Y = Symbol("y", real=True)
S = Symbol("s", real=True)


def constant(index: int) -> Symbol:
    """The symbol c0, c1, ..."""
    return Symbol(f"c{index}", real=True)


@dataclass(frozen=True)
class Form:
    """`expression` in `Y`, `S` and constant(0), constant(1), ..., which have `values` (float64)."""

    expression: Expr
    values: tuple[float, ...]
    engine: str

    @property
    def constants(self) -> tuple[Symbol, ...]:
        return tuple(constant(i) for i in range(len(self.values)))
