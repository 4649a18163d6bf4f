"""The four formulas of the InvAct paper, with its constants, as printed.

Novikov, Oseledets: "Inverted Activations: Reducing Memory Footprint in Neural Network Training", arXiv 2024, equations
5 to 8 and appendix A.2; s is the root of the paper's ỹ = y - f(T). Its two tables for SiLU are swapped: the table of
five constants, printed as the left one's, belongs to the right formula (8), the table of four to the left formula (7).
As printed, (8) ends in (1 - y) + y, which in float32 is no longer 1 for large y: from 2**25 on it is 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from actfit.fitting.activations import get
from actfit.fitting.activations.grammar import parse_formula
from actfit.fitting.invact.arguments import PUBLISHED
from actfit.fitting.invact.branches import split
from actfit.fitting.invact.formula import Candidate, Form
from actfit.fitting.invact.variable import S, Variable, Y, constant

ENGINE = PUBLISHED


@dataclass(frozen=True)
class Template:
    """A formula in y, s and free constants. `start` has initial values by name; the others begin at 1."""

    name: str
    text: str
    start: Mapping[str, float]


def _numbered(*values: float) -> dict[str, float]:
    return {f"c{i}": value for i, value in enumerate(values)}


GELU_LEFT = Template(
    "gelu left",
    "c0*sqrt(y + c1)*(2*y + c2*sqrt(-y))*(abs(c3*y**2 + abs(c4*y + c5) + c6) + c7)",
    _numbered(
        1.6311011311381, 0.16997246666667, -0.06261728, 1.2947087, 1.98055565, 0.22730362, -0.038978495, 1.3295193
    ),
)
GELU_RIGHT = Template(
    "gelu right",
    "1 + (c0 + c1*s + c2*s**2)*exp(c3*(c4 - s**2)**3)",
    _numbered(-1.383717971214795, 1.558420184350027, 0.044045748018110, 0.032146736769376, -2.119885089843949),
)
SILU_LEFT = Template(
    "silu left",
    "(c0 + c1*s + c2*s**2 + c3*s**4)*(1 - y) + y",
    _numbered(0.217177007595768, -0.507684370508263, 0.079631397669175, 0.357494204859375),
)
SILU_RIGHT = Template(
    "silu right",
    "(1 + (c0 + c1*s + c2*s**2)*exp(c3*(c4 - s**2)**3))*(1 - y) + y",
    _numbered(-1.310856402130980, 0.848589647031652, -0.162990512595109, 0.002696163985044, -5.770613302664509),
)
TEMPLATES = (GELU_LEFT, GELU_RIGHT, SILU_LEFT, SILU_RIGHT)
_BRANCHES = {"gelu": (GELU_LEFT, GELU_RIGHT), "silu": (SILU_LEFT, SILU_RIGHT)}


@cache
def published(name: str) -> tuple[Candidate, Candidate] | None:
    """The paper's formulas for the branches left and right of T, not rounded to float32; None where it has none."""
    if name not in _BRANCHES:
        return None
    left, right = (_form(template) for template in _BRANCHES[name])
    anchor = split(get(name)).branches[1].range[0]
    root = Variable(order=2, anchor=anchor)
    # Equation 5 has a root of its own, of y + c1: it is not charged for s.
    return Candidate(left, root if left.expression.has(S) else Variable()), Candidate(right, root)


def _form(template: Template) -> Form:
    constants = [constant(i) for i in range(len(template.start))]
    return Form(parse_formula(template.text, (Y, S, *constants)), tuple(template.start.values()), ENGINE)
