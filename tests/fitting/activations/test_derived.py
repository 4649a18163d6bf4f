"""Derived properties against a table written by hand: parity, turning points, branches, minimum, limits."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actfit.fitting.activations import Limits, Minimum, get, oracle
from tests.fitting.activations.catalogue_cases import INF, close, every_case, every_name, known, shape
from tests.fitting.agreement import EPS, assert_agree, misses

GELU_T, SILU_T = -0.7517915246935645, -1.278464542761074  # FACTS.md
SELU = 1.0507009873554805, 1.6732632423543772  # scale, alpha
LEAKY, SOFT = (-INF, INF), (0.0, INF)

# name: parity of f', turning points of f, of f', (minimum, at), limits of f, limits of f'.
TABLE = {
    "relu": ("none", [], [], (0, 0), SOFT, (0, 1)),
    "leaky_relu": ("none", [], [], (-INF, None), LEAKY, (0.01, 1)),
    "relu6": ("none", [], [], (0, 0), (0, 6), (0, 0)),
    "threshold": ("none", [0.1], [], (0.1, None), (20, INF), (0, 1)),
    "hardtanh": ("even", [], [], (-1, -1), (-1, 1), (0, 0)),
    "hardsigmoid": ("even", [], [], (0, -3), (0, 1), (0, 0)),
    "hardshrink": ("even", [], [], (-INF, None), LEAKY, (1, 1)),
    "softshrink": ("even", [], [], (-INF, None), LEAKY, (1, 1)),
    "relu2": ("none", [], [], (0, 0), SOFT, (0, INF)),
    "hardswish": ("none", [-1.5], [-3, 3], (-0.375, -1.5), SOFT, (0, 1)),
    "sigmoid": ("even", [], [0], (0, None), (0, 1), (0, 0)),
    "tanh": ("even", [], [0], (-1, None), (-1, 1), (0, 0)),
    "softplus": ("none", [], [], (0, None), SOFT, (0, 1)),
    "softsign": ("even", [], [0], (-1, None), (-1, 1), (0, 0)),
    "logsigmoid": ("none", [], [], (-INF, None), (-INF, 0), (1, 0)),
    "tanhshrink": ("even", [], [0], (-INF, None), LEAKY, (1, 1)),
    "elu": ("none", [], [], (-1, None), (-1, INF), (0, 1)),
    "celu": ("none", [], [], (-1, None), (-1, INF), (0, 1)),
    "selu": ("none", [], [0], (-SELU[0] * SELU[1], None), (-SELU[0] * SELU[1], INF), (0, SELU[0])),
    "gelu": ("none", [GELU_T], [-(2**0.5), 2**0.5], (-0.16997120747990363, GELU_T), SOFT, (0, 1)),
    # No closed form: roots of f' and f'' by mpmath.findroot on the formulas as torch's documentation gives them.
    "gelu_tanh": (
        "none",
        [-0.7524614220710162],
        [-1.4185040087908284, 1.4185040087908284],
        (-0.1700407505712541, -0.7524614220710162),
        SOFT,
        (0, 1),
    ),
    "quick_gelu": (
        "none",
        [SILU_T / 1.702],
        [-2.3993572805154675 / 1.702, 2.3993572805154675 / 1.702],
        (-0.27846454276107385 / 1.702, SILU_T / 1.702),
        SOFT,
        (0, 1),
    ),
    "silu": ("none", [SILU_T], [-2.3993572805154675, 2.3993572805154675], (-0.27846454276107385, SILU_T), SOFT, (0, 1)),
    "mish": (
        "none",
        [-1.1924312145154954],
        [-2.256376396360793, 1.4905711794854284],
        (-0.3088434130172504, -1.1924312145154954),
        SOFT,
        (0, 1),
    ),
}
# f' is a step function: its values and breakpoints.
STEPS = {
    "relu": ([0, 1], [0]),
    "leaky_relu": ([0.01, 1], [0]),
    "relu6": ([0, 1], [0, 6]),
    "threshold": ([0, 1], [0.1]),
    "hardtanh": ([0, 1], [-1, 1]),
    "hardsigmoid": ([0, 1 / 6], [-3, 3]),
    "hardshrink": ([0, 1], [-0.5, 0.5]),
    "softshrink": ([0, 1], [-0.5, 0.5]),
}
KINKS = {"hardswish": (-3, 3), **dict.fromkeys(["relu2", "softsign", "elu", "celu", "selu"], (0,))}


@every_name
def test_derived_properties(name):
    activation = get(name)
    parity, turning, derivative_turning, minimum, limits, derivative_limits = TABLE[name]
    assert activation.parity == parity
    assert activation.turning_points() == close(tuple(turning))
    assert activation.turning_points(1) == close(tuple(derivative_turning))
    assert activation.minimum.value == close(minimum[0])
    assert activation.minimum.at is None if minimum[1] is None else activation.minimum.at == close(minimum[1])
    for got, want in ((activation.limits, limits), (activation.derivative_limits, derivative_limits)):
        assert (got.left, got.right) == close(want)
    steps, breaks = STEPS.get(name, (None, KINKS.get(name, ())))
    assert activation.breakpoints == tuple(breaks)
    assert activation.step_values == (None if steps is None else tuple(steps))


@pytest.mark.parametrize(
    ("name", "params", "branches", "turning", "minimum", "limits", "derivative_limits", "steps"),
    [
        ("leaky_relu", {"negative_slope": 0}, "0 0 +", [], (0, 0), SOFT, (0, 1), (0, 1)),
        ("leaky_relu", {"negative_slope": -0.5}, "- 0 +", [0], (0, 0), (INF, INF), (-0.5, 1), (-0.5, 1)),
        ("leaky_relu", {"negative_slope": 1}, "+", [], (-INF, None), LEAKY, (1, 1), (1,)),
        ("hardtanh", {"min_val": -0.3, "max_val": 2}, "0 -0.3 + 2 0", [], (-0.3, -0.3), (-0.3, 2), (0, 0), (0, 1)),
        ("threshold", {"threshold": 2, "value": 0}, "0 2 +", [], (0, 2), (0, INF), (0, 1), (0, 1)),
        ("threshold", {"threshold": -2, "value": 5}, "0 -2 +", [-2], (-2, None), (5, INF), (0, 1), (0, 1)),
        ("hardshrink", {"lambd": 2.25}, "+ -2.25 0 2.25 +", [], (-INF, None), LEAKY, (1, 1), (0, 1)),
        ("softplus", {"beta": 1e-3}, "+", [], (0, None), SOFT, (0, 1), None),
        ("celu", {"alpha": 0.1}, "+", [], (-0.1, None), (-0.1, INF), (0, 1), None),
        ("elu", {"alpha": -2}, "- 0 +", [0], (0, 0), (2, INF), (0, 1), None),
        ("elu", {"alpha": 0}, "0 0 +", [], (0, 0), SOFT, (0, 1), (0, 1)),
    ],
)
def test_other_parameters(name, params, branches, turning, minimum, limits, derivative_limits, steps):
    activation = get(name, **params)
    assert shape(activation) == branches
    assert activation.turning_points() == tuple(turning)
    assert activation.minimum == Minimum(*minimum)
    assert activation.limits == Limits(*limits)
    assert activation.derivative_limits == Limits(*derivative_limits)
    assert activation.step_values == steps


@every_case
@settings(max_examples=15)
@given(data=st.data())
def test_each_branch_is_monotone_as_it_says(name, params, data):
    activation = known(name, **params)
    branch = data.draw(st.sampled_from(activation.branches))
    lo, hi = max(branch.lo, -50.0), min(branch.hi, 50.0)
    inside = st.floats(lo, hi, exclude_min=math.isfinite(branch.lo), exclude_max=math.isfinite(branch.hi))
    a, b = sorted((data.draw(inside), data.draw(inside)))
    rise = oracle.f(activation, b) - oracle.f(activation, a)
    if branch.direction == 0:
        assert rise == 0
    else:
        # 50 digits: strictly monotone wherever the points differ by more than about 1e-40 of f's scale allows.
        assert rise * branch.direction >= 0
        if b - a > 1e-6 and abs(a) < 20 and abs(b) < 20:
            assert rise * branch.direction > 0


@every_case
def test_branches_cover_the_line_in_order(name, params):
    activation = get(name, **params)
    for runs in (activation.branches, activation.derivative_runs_within(-INF, INF)):
        assert (runs[0].lo, runs[-1].hi) == (-INF, INF)
        assert all(left.hi == right.lo for left, right in pairwise(runs))
        assert all(run.lo < run.hi for run in runs)


@every_name
@settings(max_examples=15)
@given(data=st.data())
def test_derivative_is_monotone_on_its_runs_and_turns_between_them_only(name, data):
    activation = known(name)
    run = data.draw(st.sampled_from(activation.derivative_runs_within(-INF, INF)))
    inside = st.floats(max(run.lo, -30.0), min(run.hi, 30.0)).filter(lambda at: run.lo < at < run.hi)
    a, b = sorted((data.draw(inside), data.draw(inside)))
    rise = oracle.df(activation, b) - oracle.df(activation, a)
    assert rise * run.direction >= 0
    assert rise == 0 or run.direction != 0


@every_case
def test_parity_holds_pointwise(name, params):
    activation = get(name, **params)
    points = np.concatenate([np.geomspace(1e-12, 1e4, 301), 3 * np.random.default_rng(0).random(50)])
    kinks = np.abs([0.0, *activation.breakpoints])
    points = points[~np.isin(points, kinks)]
    right, left = activation.df(points), activation.df(-points)
    if activation.parity == "none":
        assert misses(points, right, left, rtol=1e-6)
        assert misses(points, right, -left, rtol=1e-6)
    else:
        sign = {"even": 1, "odd": -1}[activation.parity]
        assert_agree(points, left, sign * right, rtol=2 * EPS)  # sigmoid(x)·sigmoid(-x): same factors, other order
