"""The floor of any code beside the output: its searches against every partition, and relations between floors."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fitting.activations import get
from fitting.errors import InputError
from fitting.invact.error_floor import information_floor
from fitting.invact.side_information import best, best_by_branch, least_range, least_square
from fitting.weights import named

NORMAL = named("norm")
NUMBERS = st.lists(
    st.tuples(st.floats(-2, 2, width=16), st.integers(0, 3)), min_size=1, max_size=6, unique_by=lambda pair: pair[0]
)


def every_partition(count, parts):
    """All ways to give each of `count` values one of `parts` labels."""
    return map(np.array, product(range(parts), repeat=count))


@given(pairs=NUMBERS, parts=st.integers(1, 4))
@settings(max_examples=60)
def test_searches_against_every_partition(pairs, parts):
    """Values of at most 11 bits and whole masses: the sums of squares are exact to some units of 2**-50."""
    values, mass = (np.array(column, dtype=float) for column in zip(*sorted(pairs), strict=True))
    square, length = np.inf, np.inf
    for label in every_partition(len(values), parts):
        error, longest = 0.0, 0.0
        for part in range(parts):
            own = label == part
            if mass[own].sum() > 0:
                mean = np.average(values[own], weights=mass[own])
                error += float(mass[own] @ (values[own] - mean) ** 2)
            if own.any():
                longest = max(longest, float(np.ptp(values[own])))
        square, length = min(square, error), min(length, longest)
    assert least_square(values, mass, parts) == pytest.approx(square, abs=2.0**-40)
    assert least_range(values, parts) == length


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_floors_in_bfloat16(name):
    """One code is no information; each further code helps, and one without the branch can do what one with it can."""
    activation = get(name)
    alone, one_bit = (
        best_by_branch(activation, "bfloat16", NORMAL, 1),
        information_floor(activation, "bfloat16", NORMAL),
    )
    assert alone.rms == pytest.approx(one_bit.rms, rel=1e-9)
    assert alone.linf == pytest.approx(one_bit.linf, rel=1e-12)
    any_code = [best(activation, "bfloat16", NORMAL, codes) for codes in (2, 4, 8)]
    by_branch = [best_by_branch(activation, "bfloat16", NORMAL, codes) for codes in (1, 2, 4)]
    for free, bound in zip(any_code, by_branch, strict=True):
        assert free.rms <= bound.rms * (1 + 1e-9)
        assert free.linf <= bound.linf
    for floors in (any_code, by_branch):
        assert floors[0].rms > floors[1].rms > floors[2].rms
        assert floors[0].linf > floors[1].linf > floors[2].linf


@pytest.mark.parametrize(
    ("name", "dtype", "rms", "linf"),
    [
        ("gelu", "bfloat16", 6.73e-4, 4.97e-3),
        ("silu", "bfloat16", 7.26e-4, 5.52e-3),
        ("gelu", "float16", 1.85e-4, 2.39e-3),
    ],
)
def test_floors_to_their_printed_digits(name, dtype, rms, linf):
    """What docs/invact.md says of two bits, half a unit of the last digit off at most."""
    floor = best(get(name), dtype, NORMAL)
    assert floor.rms == pytest.approx(rms, abs=0.005 * 10 ** np.floor(np.log10(rms)))
    assert floor.linf == pytest.approx(linf, abs=0.005 * 10 ** np.floor(np.log10(linf)))


def test_formats_that_cannot_be_listed_are_refused():
    with pytest.raises(InputError, match="dtype must be bfloat16 or float16, whose numbers can be listed, got"):
        best(get("gelu"), "float32", NORMAL)
