"""Values of the catalogue against torch's autograd and the oracle, with other parameters too."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actfit.fitting.activations import get, oracle
from actfit.fitting.activations.catalogue import CATALOGUE
from tests.fitting.activations.catalogue_cases import INF, every_case, every_name
from tests.fitting.agreement import EPS, around, assert_agree, line


def torch_function(activation):
    """The counterpart in torch.nn.functional; written out for the two that torch does not have."""
    row = CATALOGUE[activation.name]
    if activation.name == "relu2":
        return lambda t: torch.relu(t) ** 2
    if activation.name == "quick_gelu":
        return lambda t: t * torch.sigmoid(1.702 * t)
    options = {**row.torch_options, **activation.params}
    if activation.name == "softplus":
        # torch's softplus is u itself above `threshold` (20 by default: wrong by exp(-20)); at 40 that is below eps.
        options["threshold"] = 40.0
    function = getattr(torch.nn.functional, row.torch)
    return lambda t: function(t, **options)


def torch_values(activation, points):
    t = torch.tensor(points, dtype=torch.float64, requires_grad=True)
    y = torch_function(activation)(t)
    (gradient,) = torch.autograd.grad(y.sum(), t)
    return y.detach().numpy(), gradient.numpy()


def oracle_values(activation, points):
    return [np.array([float(of(activation, float(point))) for point in points]) for of in (oracle.f, oracle.df)]


def size(activation, points):
    """The scale of rounding errors of f: torch computes 1 + erf and 1 + tanh, so they scale with x."""
    return slack(activation.name) / 4 * (1 + np.abs(points) + max(map(abs, activation.params.values()), default=0))


def slack(name):
    """32 roundings; but torch holds hardsigmoid's 1/6 and celu's alpha in float32, in float64 functions too."""
    return 2.0**-23 if name in ("hardsigmoid", "celu") else 32 * EPS


@every_name
def test_every_row_has_a_counterpart_in_torch(name):
    assert CATALOGUE[name].torch or name in ("relu2", "quick_gelu")
    torch_values(get(name), [1.0])


@every_case
def test_torch_agrees_in_float64(name, params):
    activation = get(name, **params)
    points = line(activation.breakpoints, 801)
    points = points[np.abs(points) <= 1e4]
    f, df = torch_values(activation, points)
    assert_agree(points, activation.f(points), f, rtol=8 * EPS, atol=size(activation, points))
    # 1 - tanh² in gelu_tanh's backward is only rounding at x = 7 and multiplied by 12; elsewhere factors are about 1.
    assert_agree(points, activation.df(points), df, rtol=slack(name), atol=slack(name))
    if activation.step_values and name != "hardsigmoid":
        kinks = around([0.0, *activation.breakpoints])
        df = torch_values(activation, kinks)[1]
        assert_agree(kinks, df, activation.df(kinks))  # the same branch: no tolerance
        assert_agree(kinks, df, oracle_values(activation, kinks)[1])


values = st.floats(-4, 4).map(lambda value: round(value, 3))
positive = st.floats(0.05, 6)
RANDOM = {
    "leaky_relu": {"negative_slope": values},
    "threshold": {"threshold": values, "value": values},
    "hardtanh": {"min_val": st.floats(-3, -0.01), "max_val": st.floats(0, 3)},
    "hardshrink": {"lambd": positive},
    "softshrink": {"lambd": positive},
    "softplus": {"beta": positive},
    "elu": {"alpha": values},
    "celu": {"alpha": positive},
}


@pytest.mark.parametrize("name", RANDOM)
@settings(max_examples=12)
@given(data=st.data())
def test_torch_agrees_for_random_parameters(name, data):
    activation = get(name, **data.draw(st.fixed_dictionaries(RANDOM[name])))
    points = np.concatenate([around([0.0, *activation.breakpoints]), np.linspace(-8, 8, 33), [-1e4, 1e4]])
    f, df = torch_values(activation, points)
    assert_agree(points, activation.f(points), f, rtol=8 * EPS, atol=size(activation, points))
    assert_agree(points, activation.df(points), df, rtol=slack(name), atol=slack(name))


@every_case
def test_float64_against_the_oracle(name, params):
    activation = get(name, **params)
    points = line(activation.breakpoints, 201)
    f, df = oracle_values(activation, points)
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        got_f, got_df = activation.f(points), activation.df(points)
    # A sum of two or three rounded terms of size |x| (in f) and 1 (in f'); beside it a few ulps of the result.
    assert_agree(points, got_f, f, rtol=4 * EPS, atol=4 * EPS * np.minimum(1 + np.abs(points), 10))
    assert_agree(points, got_df, df, rtol=4 * EPS, atol=4 * EPS)
    assert not np.isnan(got_f).any()
    assert not np.isnan(got_df).any()


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "logsigmoid", "gelu", "quick_gelu", "silu", "mish", "elu"])
def test_tails_keep_their_relative_accuracy(name):
    # Relative accuracy too: nothing cancels. exp(u) loses |u| ulps, and x φ(x) + Φ(x) a factor x².
    activation = get(name)
    far = np.array([-36.5, -30, -21.3, -12.1, -7.7, 7.7, 12.1, 21.3, 30, 36.5])
    for got, want in zip((activation.f(far), activation.df(far)), oracle_values(activation, far), strict=True):
        assert_agree(far, got, want, rtol=EPS * 4 * far**2)


@every_case
def test_infinities_nan_and_shape(name, params):
    activation = get(name, **params)
    at = np.array([[-INF, INF], [math.nan, 0.0]])
    for values, limits in ((activation.f(at), activation.limits), (activation.df(at), activation.derivative_limits)):
        assert (values[0, 0], values[0, 1]) == (limits.left, limits.right)
        assert np.isnan(values[1, 0])
        assert not np.isnan(values[1, 1])
        assert values.shape == (2, 2)
    assert activation.f(1.0).shape == ()
    assert activation.f([]).shape == (0,)
    assert activation.f([1, 2]).dtype == np.float64
