"""The lower bound is never above the error of any function, and no wrong answer goes unreported."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actfit.fitting.activations import get
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.certificate import _variation, lower_bound
from actfit.fitting.fewbit.measure import Measure
from actfit.fitting.fewbit.search import grid_optimum
from actfit.fitting.fewbit.solve import _check_agreement, _task, fit
from actfit.fitting.weights import from_samples, parse_weight, uniform
from tests.fitting.fewbit.references import (
    DERIVATIVES,
    GAP,
    HI,
    LO,
    SAW,
    activation_of,
    allowance,
    dense_error,
    fitted,
    grid,
    nearest,
)
from tests.fitting.partitions import best_of_all

N = 100_000  # points of the dense grid


def bound_on(name, cells_to_spare, k, shared, weight=None, domain=(LO, HI)):
    """(bound, optimum on the grid) on fresh cells, as coarse as asked for."""
    measure = Measure(activation_of(name), weight or uniform(), domain)
    cells = measure.cells(cells_to_spare * measure.mass * measure.span)
    _, cost, slack = grid_optimum(measure, cells, k, shared)
    bound, gain = lower_bound(measure, cells, k, cost, slack, shared)
    assert gain >= 0
    return bound, math.fsum(cells.moments.spread) + cost


def cost_of(values, masses):
    """By the ends of a run of neighbours, the cost of its mean."""

    def cost(a, b):
        mean = np.average(values[a:b], weights=masses[a:b])
        return float((masses[a:b] * (values[a:b] - mean) ** 2).sum())

    return cost


NEAR = st.floats(-4, 4).map(lambda x: round(x, 2))


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(NEAR, min_size=1, max_size=9), st.sampled_from(["gelu", "selu", "tanh", SAW]), st.integers(1, 2))
def test_few_samples_against_every_partition(samples, name, bits):
    points, counts = np.unique(samples, return_counts=True)
    masses = counts / counts.sum()
    derivatives = points - 2 * (points > 0) if name == SAW else DERIVATIVES[name](points)
    order = np.argsort(derivatives, kind="stable")
    rounding = 1e-14  # of means and squares below 16
    for kind, best in [
        ("shared", best_of_all(cost_of(derivatives[order], masses[order]), len(points), 2**bits)),
        ("contiguous", best_of_all(cost_of(derivatives, masses), len(points), 2**bits)),
    ]:
        error = fit(activation_of(name), bits, levels=kind, weight=from_samples(samples), domain=(-5, 5)).error
        assert error.lower_bound <= best + rounding
        # A border's place between samples is arbitrary; only which samples it divides matters.
        assert error.l2_squared == pytest.approx(best, rel=GAP, abs=rounding)
        coarse, _ = bound_on(name, 1.0, 2**bits, kind == "shared", from_samples(samples), (-5, 5))
        assert coarse <= best + rounding


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.sampled_from(sorted(DERIVATIVES)), st.integers(1, 3), st.floats(-7, 0), st.integers(0, 2**32 - 1), st.booleans()
)
def test_no_function_is_below_the_bound(name, bits, decades, seed, shared):
    """Random functions, from far off to very near the optimum, by a midpoint rule of 100,000 points."""
    result = fitted(name, bits, "shared" if shared else "contiguous")
    rng = np.random.default_rng(seed)
    x, h = grid(N)
    values = DERIVATIVES[name](x)
    noise = 10.0**decades
    levels = result.steps.levels + noise * rng.normal(size=len(result.steps.levels))
    if shared:
        codes, levels = nearest(values, levels)
    else:
        borders = result.steps.borders + noise * rng.normal(size=len(result.steps.borders))
        # Borders go to ends of cells, where the midpoint rule does not see them.
        codes = result.steps.codes[np.searchsorted(np.sort(np.round((borders - LO) / h)), np.arange(N), side="right")]
    error = dense_error(values, levels[codes], h)
    assert error >= result.error.lower_bound - allowance(N, np.abs(levels).max())


@pytest.mark.parametrize(
    ("name", "domain", "variation"),
    [
        ("gelu", (-10, 10), 1 + 8 * 0.06452),  # 0, down by 0.1289, up to 1.1289, back to 1
        (SAW, (-2, 2), 2 + 2 + 2),
        ("x*x/2", (-1, 3), 4),
        ("where(x < 0, x, where(x < 1, -x, x))", (-2, 2), 4),
    ],
)
def test_variation_is_a_bound_however_coarse(name, domain, variation):
    for to_spare in (1.0, 1e-2, 1e-4, 1e-6):
        measure = Measure(activation_of(name), uniform(), domain)
        cells = measure.cells(to_spare * measure.mass * measure.span)
        got = _variation(cells, cells.moments.mass > 0, measure.curve.edges)
        assert got >= variation * (1 - 1e-4)
    assert got <= variation * 1.05


@pytest.mark.parametrize("name", ["gelu", "selu", "hardswish", "x*sin(x)", "abs(x)**1.5", SAW])
def test_ranges_hold_f_prime_and_are_not_wide(name):
    measure = Measure(activation_of(name), uniform(), (LO, HI))
    cells = measure.cells(1e-5 * measure.mass * measure.span)
    inside = np.linspace(0, 1, 9)[1:-1]
    for part in inside:
        at = cells.lo + part * (cells.hi - cells.lo)
        values = measure.curve.derivatives(at, measure.curve.run_at(cells.hi))
        assert (np.abs(values - cells.centre) <= cells.width / 2 + 1e-14).all()
    assert np.median(cells.width) < 0.1 * measure.span


@pytest.mark.parametrize("wrong", ["judged", "searched", "bound"])
def test_a_contradiction_is_an_error(wrong):
    """Any of the search, the judge and the bound may be wrong by more than the error of quadrature."""
    task = _task(get("gelu"), 3, "best", parse_weight("norm"), None)
    values = {"judged": 1.0, "searched": 1.0, "bound": 1.0}
    _check_agreement(task, tuple(values.values()), 0.0)
    values[wrong] = 1 + 1e-6
    with pytest.raises(InputError, match="give landmarks"):
        _check_agreement(task, tuple(values.values()), 0.0)
    _check_agreement(task, tuple(values.values()), 2e-6)
