"""The picture of joint codes by bits: its lines are the errors of stored files and other fits."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from actfit.coefficients import load
from actfit.fitting.activations import get
from actfit.fitting.fewbit.judge import WEIGHTED_DIGITS
from actfit.fitting.fewbit.solve import fit
from actfit.fitting.plots import joint_bits_figure
from actfit.fitting.plots.joint import BITS, CLOSE
from actfit.fitting.weights import named
from tests.fitting.drawings import drawn

pytestmark = pytest.mark.slow

# Four numbers are rounded to so many digits, each by half a unit: an error and an integral, here and in a file.
ROUNDED = 4 * 10.0 ** (1 - WEIGHTED_DIGITS) / 2
ONE_CODE, TWO_CODES = "one code for both", "two codes, of half the bits each"


@pytest.fixture(scope="module")
def silu() -> Figure:
    return joint_bits_figure(get("silu"))


def wholes() -> np.ndarray:
    """∫ f'² w and ∫ f² w, from the errors in a file."""
    error = load("silu", "joint-4bit")["error"]
    return np.array([error[key] / error[f"{key}_share"] ** 2 for key in ("derivative", "output")])


def totals(figure: Figure, label: str) -> dict[int, float]:
    """The sum of both squared errors, by bits."""
    (bits, derivative), (_, output) = (drawn(axes, label) for axes in figure.axes)
    return dict(zip(bits.tolist(), np.array([derivative**2, output**2]).T @ wholes(), strict=True))


def test_one_code_is_as_good_as_the_file_of_its_bits(silu: Figure) -> None:
    totals_by_bits = totals(silu, ONE_CODE)
    assert list(totals_by_bits) == list(BITS)
    for bits, total in totals_by_bits.items():
        error = load("silu", f"joint-{bits}bit")["error"]
        # The picture's codes end their search at a gap of CLOSE.
        assert error["lower_bound"] <= total * (1 + ROUNDED)
        assert total * (1 - CLOSE) <= error["total"] * (1 + ROUNDED)


def test_the_other_codes_are_the_best_of_each(silu: Figure) -> None:
    bits, derivative = drawn(silu.axes[0], TWO_CODES)
    assert bits.tolist() == [2, 4, 6, 8]
    tables = [fit(get("silu"), half, weight=named("norm")).error.l2_squared for half in (1, 2, 3, 4)]
    assert derivative**2 * wholes()[0] == pytest.approx(tables, rel=ROUNDED)
    for axes in silu.axes:
        together = dict(zip(*drawn(axes, ONE_CODE), strict=True))
        for count, error in zip(*drawn(axes, TWO_CODES), strict=True):
            if count // 2 in together:  # no code of as many bits is nearer to f', or to f, than the best for it alone
                assert error**2 * (1 - CLOSE) <= together[count // 2] ** 2
