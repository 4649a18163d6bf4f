"""How far closed forms lie above their floors: what the polynomial takes away, and what docs/invact.md says of it."""

import numpy as np
import pytest
from sympy import Integer

from benchmarks.error_floors import NEGLIGIBLE, excess, measure
from benchmarks.error_floors_page import DEGREE, NAME, floors_section
from benchmarks.pages import of_any
from fitting.invact.error_floor import Cells
from fitting.invact.formula import Candidate, Form
from fitting.invact.variable import Variable

COUNT = 400
MASS = np.linspace(1.0, 3.0, COUNT) / COUNT
RANK = np.cumsum(MASS) / MASS.sum()
ZERO = Candidate(Form(Integer(0), (), "closed"), Variable())  # q = 0 everywhere


def cells_of(mean):
    y = np.arange(COUNT, dtype=np.float64)
    return Cells(y, mean, mean, mean, np.zeros(COUNT), MASS)


def test_a_polynomial_takes_away_what_is_one():
    alone, corrected = excess(cells_of((2 * RANK - 1) ** DEGREE), ZERO)
    assert alone == pytest.approx(float(MASS @ (2 * RANK - 1) ** (2 * DEGREE)))
    assert corrected < 1e-20 * alone


def test_it_leaves_what_changes_its_sign_from_output_to_output():
    signs = np.where(np.arange(COUNT) % 2, 1.0, -1.0)
    alone, corrected = excess(cells_of(signs), ZERO)
    # A share of about (DEGREE + 1) / COUNT of any noise lies in the polynomials' span.
    assert alone * (1 - 3 * (DEGREE + 1) / COUNT) < corrected <= alone


def test_outputs_that_never_occur_count_nothing():
    cells = cells_of(np.ones(COUNT))
    assert excess(Cells(**{**vars(cells), "mass": np.zeros(COUNT)}), ZERO) == (0.0, 0.0)


@pytest.mark.slow
def test_no_polynomial_gains_more_than_the_page_says():
    lines = [line.strip("| ").split(" | ") for line in floors_section().splitlines()[2:]]
    shares = {name: [float(cell.removesuffix(" %")) for cell in cells if cell != "–"] for name, *cells in lines}
    assert len(shares.pop("relu2")) == 2  # in bfloat16 its floor is negligible
    assert NEGLIGIBLE < 1e-7
    assert {"hardswish", "sigmoid", "tanh", "softplus", "softsign", "elu", "selu"} <= shares.keys()
    for name, (*pairs,) in shares.items():
        for alone, corrected in zip(pairs[::2], pairs[1::2], strict=True):
            assert 0 <= alone - corrected <= 0.55, name  # half a point, as the table rounds


@pytest.mark.slow
def test_the_rows_are_of_the_files_that_ship():
    measured, stored = measure(), of_any(NAME)
    keys = [(row.what, row.dtype, row.implementation) for row in measured]
    assert keys == [(row["what"], row["dtype"], row["implementation"]) for row in stored]
    # The table has three digits. NumPy's sums of 65536 numbers differ between processors by less.
    assert [row.median for row in measured] == pytest.approx([row["median"] for row in stored], rel=1e-6, abs=1e-6)
