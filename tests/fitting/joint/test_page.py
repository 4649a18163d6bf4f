"""The tables of docs/joint.md, computed again."""

import re
from pathlib import Path

import numpy as np
import pytest

from coefficients import load
from fitting.activations import get
from fitting.joint import judge
from fitting.joint.solve import fit_joint
from fitting.joint.table import Table
from fitting.weights import named

PAGE = (Path(__file__).parents[3] / "docs" / "joint.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, its first row first."""
    table = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line.strip("|").split("|") for line in re.findall(r"^\|.*\|$", table, re.MULTILINE)]
    return [[cell.strip() for cell in line] for line in lines if not line[0].startswith("---")]


def shown(derivative: float, output: float) -> str:
    return f"{derivative:.2g} / {output:.2g}"


def test_errors() -> None:
    (_, *names), *table = rows("Errors")
    assert [int(bits) for bits, *_ in table] == list(range(2, 9))
    for bits, *cells in table:
        errors = [load(name, f"joint-{bits}bit")["error"] for name in names]
        assert cells == [shown(error["derivative_share"], error["output_share"]) for error in errors]


def test_another_scale() -> None:
    stored = load("gelu", "joint-4bit")["solution"]
    usual = Table(*(np.array(stored[key]) for key in ("borders", "derivatives", "outputs")))
    _, *table = rows("Another scale")
    for scale, *cells in table:
        weight = named(f"norm(0,{scale})")
        by_usual = judge.shares(judge.errors(get("gelu"), weight, weight.domain, usual))
        best = fit_joint(get("gelu"), 4, weight=weight).error
        pairs = (by_usual["derivative_share"], by_usual["output_share"]), (best.derivative_share, best.output_share)
        assert cells == [shown(*pair) for pair in pairs]


def test_both_relative_errors_are_alike_at_lambda_1() -> None:
    """∫f'²w / ∫f²w is the λ at which the sum is that of the squared relative errors."""
    for name in ("gelu", "silu", "mish", "quick_gelu"):
        error = load(name, "joint-5bit")["error"]
        wholes = [error[key] / error[f"{key}_share"] ** 2 for key in ("derivative", "output")]
        assert wholes[0] / wholes[1] == pytest.approx(1.0, abs=0.15)
