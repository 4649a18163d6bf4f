"""Closed forms adapted to 16-bit formats: the constants are the best, cost nothing, and are left alone elsewhere."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actfit.fitting.activations import from_expression, get
from actfit.fitting.invact.engines.adapted import GRID, _Outputs, adapted_candidates
from actfit.fitting.invact.error_floor import information_floor
from actfit.fitting.invact.front import judged
from actfit.fitting.invact.judge import Judge
from actfit.fitting.invact.proof import prove
from actfit.fitting.invact.solve import fit
from actfit.fitting.weights import named

NORMAL = named("norm")
CASES = [("bfloat16", 1), ("float16", 2)]  # each dtype and each number of bits: they do not depend on each other
# Rounding a constant to float32 moves it by 2^-24 of itself; next to an optimum the error is flat, so that the mean
# square moves by less than this share.
FLOAT32 = 2.0**-24


def score_of(error_floor, candidates):
    return judged(error_floor, [Judge(index, error_floor) for index in range(len(candidates))], candidates)


@given(st.integers(0, 2**31), st.integers(1, 12), st.floats(-0.5, 0.5))
@settings(max_examples=60, deadline=None)
def test_no_other_low_is_better(seed, count, shift):
    rng = np.random.default_rng(seed)
    outputs = _Outputs(
        np.sort(rng.uniform(-0.5, 3.0, count)), rng.normal(size=count), rng.normal(size=count), rng.uniform(size=count)
    )
    cost, low = outputs.best_low(shift)

    def cost_of(least):
        s = np.sqrt(np.maximum(outputs.distance + shift, least))
        return float(outputs.mass @ (outputs.factor * s - outputs.value) ** 2)

    scale = float(outputs.mass @ (outputs.value**2 + 4.0 * outputs.factor**2))
    rounding = 100 * count * 2.0**-53 * scale  # of sums of some 10 products an output, that cancel
    assert cost == pytest.approx(cost_of(low), abs=rounding)
    # Between the outputs and at them; beyond the last all of them stop.
    last = max(float(outputs.distance[-1]) + shift, 0.0)
    tried = [0.0, *np.linspace(0.0, last, 997), *np.maximum(outputs.distance + shift, 0.0)]
    assert min(map(cost_of, tried)) >= cost - rounding


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "bits"), CASES)
def test_no_other_constants_of_hardswish_are_better(dtype, bits):
    error_floor = information_floor(get("hardswish"), dtype, NORMAL, bits)
    candidates = adapted_candidates(error_floor)
    best = score_of(error_floor, candidates)
    variable = candidates[0].variable
    step = float(error_floor.format.spacing(np.array(-0.375)))
    lows = [variable.low] if variable.low is None else [variable.low * (1 + share) for share in (-0.3, 0.0, 0.01, 0.3)]
    for shift in step * np.array([*np.linspace(-1, 1, 21), -1 / GRID, 0.0, 1 / GRID]):
        for low in lows:
            moved = replace(variable, anchor=variable.anchor + float(shift), low=low)
            other = score_of(error_floor, tuple(replace(candidate, variable=moved) for candidate in candidates))
            assert other.rms >= best.rms * (1 - FLOAT32), (shift, low)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "bits"), CASES)
def test_they_cost_no_instruction_and_the_bound_is_proven(dtype, bits):
    fitted = fit(get("hardswish"), dtype, bits=bits)
    closed = fit(get("hardswish"), dtype, bits=bits, max_error=1e-5)
    assert (fitted.best.engine, closed.best.engine) == ("adapted", "closed")
    assert fitted.best.price == closed.best.price
    assert fitted.best.rms < closed.best.rms
    if bits == 1:  # with two the y at f(T) is cut in two already
        assert fitted.best.linf < 1.06 * fitted.error_floor.linf < closed.best.linf / 1.8
        # The mean square in excess of the floor falls to less than a twentieth.
        excess = [row.rms**2 - fitted.error_floor.rms**2 for row in (fitted.best, closed.best)]
        assert excess[0] < excess[1] / 20
    for candidate, branch in zip(fitted.best.candidates, fitted.error_floor.split.branches, strict=True):
        assert math.isfinite(prove(candidate, branch).upper)


def test_a_maximum_is_a_minimum_turned():
    up, down = (
        adapted_candidates(information_floor(from_expression(expr), "float16", NORMAL))
        for expr in ("x*(x + 1)", "-x*(x + 1)")
    )
    assert up[0].variable.anchor == -down[0].variable.anchor
    assert (up[0].variable.low, up[0].variable.upward, down[0].variable.upward) == (down[0].variable.low, True, False)
    y = np.array([-0.25, -0.125, 0.0, 3.0])
    for rising, falling in zip(up, down, strict=True):
        assert (rising.float32(y) == -falling.float32(-y)).all()


@pytest.mark.parametrize("name", ["tanh", "relu2", "gelu", "tanhshrink", "hardshrink", "relu6"])
def test_functions_without_such_a_root(name):
    # One branch; f(T) = 0, about which numbers are dense; no closed form; no turning point.
    assert adapted_candidates(information_floor(get(name), "bfloat16", NORMAL)) is None


@pytest.mark.slow
def test_what_keeps_its_rule_is_left_alone():
    assert fit(get("hardswish"), "float32").best.engine == "closed"
    # Far from T no output that counts is near f(T).
    assert fit(get("hardswish"), "bfloat16", weight=named("norm(10,0.5)")).best.engine == "closed"
