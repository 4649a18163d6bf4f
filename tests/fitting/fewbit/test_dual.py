"""The search with a price on segments against exact arithmetic, and against the programme of k layers."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.dp import partition
from actfit.fitting.fewbit.dual import priced_partition
from tests.fitting.fewbit.references import gelu
from tests.fitting.fewbit.test_dp import CURVES, MASSES, Atoms, atoms, best_by_fractions, cost_of


@given(atoms(), st.integers(1, 10))
@example(([0.0, 1.0, 0.0], [1.0, 1.0, 1.0]), 2)  # no price leads to two segments: 2/3, 1/2, 0
@example(([-1.0, 0.0, 1.0], [1.0, 1.0, 1.0]), 2)
@example(([0.0, 0.0, 1.0], [0.0, 0.0, 0.0]), 2)
def test_the_least_cost_is_within_the_slack(case: Atoms, k: int) -> None:
    values, masses = case
    got = priced_partition(values, masses, k)
    if got is None:
        return
    best = best_by_fractions(values, masses, k)
    assert abs(Fraction(got.cost) - best) <= Fraction(got.slack)
    assert len(got.cuts) < k
    assert cost_of(got.cuts, values, masses) <= best + 2 * Fraction(got.slack)


@pytest.mark.parametrize("masses", MASSES)
@pytest.mark.parametrize("curve", CURVES)
def test_sorted_values_always_have_a_price(curve: str, masses: str) -> None:
    """The least cost is convex in k there: an answer that differs from that of k layers has the same cost."""
    x = np.linspace(-4, 4, 700)
    order = np.argsort(CURVES[curve](x), kind="stable")
    values, weights = CURVES[curve](x)[order], MASSES[masses](x)[order]
    for k in (1, 2, 3, 16, 17, 100):
        got, want = priced_partition(values, weights, k), partition(values, weights, k)
        if want.cost <= want.slack:  # lost in rounding, and so would be its price
            continue
        assert got is not None
        assert abs(got.cost - want.cost) <= got.slack + want.slack
        assert got.slack <= want.slack


@pytest.mark.parametrize("curve", ["gelu'", "snake', 63 turns", "walk", "noise"])
def test_other_orders_are_right_or_refused(curve: str) -> None:
    x = np.linspace(-4, 4, 300)
    values, solved = CURVES[curve](x), 0
    for k in range(1, 40):
        got, want = priced_partition(values, np.ones(300), k), partition(values, np.ones(300), k)
        if got is not None:
            solved += 1
            assert abs(got.cost - want.cost) <= got.slack + want.slack
            assert got.slack <= want.slack  # else it must say that there is no price
    assert solved > 3


def test_two_that_are_equally_good_are_spliced() -> None:
    """By symmetry the error of gelu' falls by as much from 15 to 16 levels as from 16 to 17: no price prefers 16."""
    values = np.sort(gelu(np.linspace(-10, 10, 10_000)))
    got, want = priced_partition(values, np.ones(10_000), 16), partition(values, np.ones(10_000), 16)
    assert got is not None
    assert len(got.cuts) == 15
    assert abs(got.cost - want.cost) <= got.slack


def test_the_slack_of_many_levels_is_small() -> None:
    """The slack of k layers, each with its loss, was half of the certificate's gap at 8 bits."""
    values = np.sort(gelu(np.linspace(-10, 10, 20_000)))
    got, want = priced_partition(values, np.ones(20_000), 256), partition(values, np.ones(20_000), 256)
    assert got is not None
    assert got.cuts.tolist() == want.cuts.tolist()
    assert got.slack < want.slack / 100 < got.cost


def test_few_values_and_bad_ones() -> None:
    got = priced_partition([3.0, 1.0, 1.0], [1.0, 0.0, 2.0], 2)
    assert got is not None
    assert (got.cost, got.slack, got.cuts.tolist()) == (0.0, 0.0, [2])
    with pytest.raises(InputError, match="k must be 1 or more, got 0"):
        priced_partition([1.0], [1.0], 0)
    with pytest.raises(InputError, match="values must be finite"):
        priced_partition([math.nan], [1.0], 1)
