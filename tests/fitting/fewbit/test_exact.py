"""The parts of a certificate under a constant weight (polynomials, moments and ranges) against balls."""

import math

import flint
import numpy as np
import pytest

from actfit.fitting.activations import names
from actfit.fitting.fewbit import judge
from actfit.fitting.fewbit.certificate import lower_bound
from actfit.fitting.fewbit.curve import Curve
from actfit.fitting.fewbit.exact import ExactCells
from actfit.fitting.fewbit.measure import Measure
from actfit.fitting.fewbit.panels import EPS, NODES, gauss, panels_of
from actfit.fitting.fewbit.search import grid_optimum
from actfit.fitting.weights import parse_weight, uniform
from tests.fitting.fewbit.references import HI, LO, SAW, activation_of, fitted

PRECISION = 200  # bits of the balls that are compared with
SMOOTH = [name for name in names() if not Curve(activation_of(name), LO, HI).is_step]
OTHERS = [SAW, "x*sin(x)", "x*exp(-x*x)", "where(x < 0, x*x/2, log(1 + x))", "abs(x)**3"]


def measure_of(name, domain=(LO, HI)):
    return Measure(activation_of(name), uniform(), domain)


def cells_of(measure, to_spare):
    return measure.cells(to_spare * measure.mass * measure.span)


@pytest.mark.parametrize("name", [*SMOOTH, *OTHERS])
def test_panels_are_within_their_radius(name):
    """At points, ends among them, and in the mean over stretches of all lengths."""
    curve = Curve(activation_of(name), LO, HI)
    level, reach = (curve.low + curve.high) / 2, (curve.high - curve.low) / 2
    rng = np.random.default_rng(3)
    for run in curve.runs:
        panels = panels_of(run, level, reach)
        assert panels.edges[0] == run.lo
        assert panels.edges[-1] == run.hi
        assert panels.radius.max() <= 1e-12 * reach
        for index in range(len(panels.centre)):
            lo, hi = panels.edges[index : index + 2].tolist()
            points = [lo, hi, *rng.uniform(lo, hi, 5).tolist()]
            values = panels.at(np.array(points), np.full(len(points), index))
            ends = np.sort(lo + (hi - lo) * 10.0 ** -rng.uniform(0, 9, (4, 2)))
            means = panels.means(ends[:, 0], ends[:, 1], np.full(4, index))
            with flint.ctx.workprec(PRECISION):
                for at, value in zip(points, values.tolist(), strict=True):
                    assert abs(run.piece.d1.arb(flint.arb(at)) - level - value) <= panels.radius[index]
                for (a, b), value in zip(ends.tolist(), means.tolist(), strict=True):
                    mean = (run.piece.f.arb(flint.arb(b)) - run.piece.f.arb(flint.arb(a))) / (flint.arb(b) - a)
                    assert abs(mean - level - value) <= panels.radius[index]


def test_a_function_that_is_not_analytic_has_no_panels():
    """At the end of a square root the bound uses estimates instead, as under other weights."""
    measure = measure_of("x**2.5", (0.0, 5.0))
    assert not ExactCells(measure).works
    assert 0 < fitted("x**2.5", 2, "best", "uniform", (0.0, 5.0)).error.gap < 1e-4


def test_gauss_is_exact_for_the_polynomials_of_panels():
    nodes, weights = map(np.array, gauss())
    for power in range(2 * NODES):
        assert weights @ nodes**power == pytest.approx(1 / (power + 1), rel=8 * EPS)


@pytest.mark.parametrize("to_spare", [1.0, 1e-3, 1e-5])
@pytest.mark.parametrize("name", ["gelu", "selu", "hardswish", "tanh", "relu2", "mish", "softsign", *OTHERS])
def test_cells_hold_what_they_say(name, to_spare):
    measure = measure_of(name)
    cells = cells_of(measure, to_spare)
    exact, inside = ExactCells(measure).of(cells)
    assert (exact.moments.mass == cells.hi - cells.lo).all()
    runs = measure.curve.run_at(cells.hi)
    spreads, sampled = 0.0, range(0, len(cells.lo), 1 + len(cells.lo) // 200)
    with flint.ctx.workprec(PRECISION):
        for i in sampled:
            piece = measure.curve.runs[runs[i]].piece
            lo, hi = flint.arb(cells.lo[i]), flint.arb(cells.hi[i])
            mean = (piece.f.arb(hi) - piece.f.arb(lo)) / (hi - lo)
            assert abs(mean - exact.moments.mean[i]) <= 1e-12 * measure.top
            spread = judge.squared_error(piece, lo, hi, mean.mid())
            # A mean so near to the values leaves a spread of 0, but for the last digits of the integral.
            assert spread.lower() <= exact.moments.spread[i] + 1e-30 * measure.top**2
            spreads += float(spread)
            for part in (0.0, 0.3, 0.9, 1.0):
                value = piece.d1.arb(lo + part * (hi - lo))
                assert exact.low[i] <= value.upper()
                assert value.lower() <= exact.high[i]
    if sampled.step == 1:
        rounding = 1e-12 * measure.mass * measure.top * measure.span
        assert spreads - rounding <= inside <= spreads + 1e-15 * measure.mass * measure.span**2
    assert inside <= math.fsum(exact.moments.spread) * (1 + 8 * EPS)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "contiguous"])
@pytest.mark.parametrize("name", ["gelu", "selu", "hardswish", "tanh", "relu2", "x*sin(x)", SAW])
def test_the_bound_is_below_what_is_reached(name, shared):
    """The best function has borders inside cells; on coarse cells only the subtracted gain keeps the bound below it."""
    measure = measure_of(name)
    exact = ExactCells(measure)
    for bits in (1, 2, 3, 5):
        error = fitted(name, bits, "shared" if shared else "contiguous").error
        for to_spare in (1.0, 1e-2, 1e-3, 1e-5, 1e-6):
            known, inside = exact.of(cells_of(measure, to_spare))
            _, cost, slack = grid_optimum(measure, known, 2**bits, shared)
            bound, gain = lower_bound(measure, known, 2**bits, cost, slack, shared, inside)
            assert bound <= error.l2_squared
            # The optimum on cells is at least the true one, which `error` bounds; the difference is at most the gain.
            assert bound >= error.lower_bound - gain - 2 * slack - 1e-12 * measure.mass * measure.top * measure.span


def test_only_a_constant_weight_has_exact_cells():
    with pytest.raises(TypeError, match="weight norm is not constant"):
        ExactCells(Measure(activation_of("gelu"), parse_weight("norm"), (LO, HI)))
