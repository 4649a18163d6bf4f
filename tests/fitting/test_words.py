"""Numbers as reports print them."""

import pytest

from actfit.coefficients import load
from actfit.coefficients.store import available
from actfit.fitting.words import counted, percent, upwards


@pytest.mark.parametrize(
    ("value", "shown"), [(0.01116, "0.012"), (0.011, "0.011"), (7.15e-7, "7.2e-07"), (0.5, "0.5"), (0, "0")]
)
def test_a_bound_is_not_printed_below_itself(value, shown):
    assert upwards(value) == shown
    assert float(shown) >= value


def test_what_is_proven_holds_as_it_is_printed():
    bounds = [
        bound
        for entry in available()
        if entry.name.startswith("invact")
        for bound in load(entry.function, entry.name)["error"]["bound"]
        if bound is not None
    ]
    assert any(float(f"{bound:.3g}") < bound for bound in bounds)  # to nearest some would not
    for digits in (2, 3, 6):
        assert all(bound <= float(upwards(bound, digits)) for bound in bounds)


def test_counts_and_shares():
    assert (counted(1, "level"), counted(2, "level"), counted(0, "level")) == ("1 level", "2 levels", "0 levels")
    assert (percent(0.0123456), percent(1), percent(0)) == ("1.2 %", "100 %", "0 %")
