"""What crosses for a derivative: the rows' errors, and that nets differ in nothing but what crosses."""

import pytest

from benchmarks.compression.models import Size
from benchmarks.factors import derivative_errors, net_errors
from benchmarks.factors_page import FACTORS, FUNCTIONS, INPUTS, LARGER, NAME, PACKAGED
from benchmarks.pages import of_any
from coefficients import load

pytestmark = pytest.mark.slow


def test_errors_of_derivatives() -> None:
    """The rows are of the codes and tables that ship; where x is large, a table errs as its file says it may."""
    stored = {
        (row["what"], row["implementation"], row["mode"]): row["median"]
        for row in of_any(NAME)
        if row["size"].get("bits") == 2
    }
    for row in derivative_errors(bits=(2,)):
        # Compared with three digits of the page: floating-point sums differ between processors by far less.
        assert row.median == pytest.approx(stored[row.what, row.implementation, row.mode], rel=1e-3)
        if row.implementation == PACKAGED:
            # f'(x) + f'(-x) = 1, so f' is 1/2 or more, root mean square; 1 % for uneven samples.
            assert row.median < 1.01 * load(row.what, "fewbit-2bit")["error"]["linf"] / 0.5
    assert {what for what, _, _ in stored} >= set(FUNCTIONS)


def test_nets_keep_the_same_bytes_either_way() -> None:
    rows = list(net_errors(("BERT",), Size(1, 4, 32, 64)))
    values = {(row.size["larger"], row.implementation, row.mode): row.median for row in rows}
    for larger in LARGER:
        assert values[larger, FACTORS, "kept"] == values[larger, INPUTS, "kept"]
        assert 0 < values[larger, FACTORS, "factors"] < values[larger, FACTORS, "kept"]
        assert values[larger, INPUTS, "factors"] == 0
        assert 0 < values[larger, FACTORS, "error"] < 1
