"""Users' expressions: the catalogue's functions spelled out, scaled and reflected, and functions beyond it."""

import math

import numpy as np
import pytest
from scipy.special import lambertw

from actfit.fitting.activations import from_expression, get
from actfit.fitting.activations.catalogue import CATALOGUE
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.solve import fit
from actfit.fitting.invact.solve import fit as fit_from_output
from actfit.fitting.joint.solve import fit_joint
from tests.fitting.activations.catalogue_cases import INF, close, shape
from tests.fitting.agreement import EPS, assert_agree, line

pointwise = np.concatenate([line((), 401), [-INF, INF]])


@pytest.mark.parametrize(
    ("expr", "name"),
    [
        ("x*tanh(log(1+exp(x)))", "mish"),
        ("x*(1 + erf(x/sqrt(2)))/2", "gelu"),
        ("x/(1 + exp(-x))", "silu"),
        ("(exp(x) - exp(-x))/(exp(x) + exp(-x))", "tanh"),
        ("(x + abs(x))/2", "relu"),
        ("min(relu(x), 6)", "relu6"),
        ("x*min(relu(x + 3), 6)/6", "hardswish"),
        ("where(x < -0.5, x, where(x > 0.5, x, 0))", "hardshrink"),
        ("where(-0.5 <= x <= 0.5, 0, x)", "hardshrink"),
        ("Piecewise((x - 0.5, 0.5 < x), (x + 0.5, x < -0.5), (0, True))", "softshrink"),
        ("where((x > -1) & (x < 1), x, sign(x))", "hardtanh"),
    ],
)
def test_a_user_may_spell_the_catalogue(expr, name):
    user, catalogue = from_expression(expr), get(name)
    inside = np.isfinite(pointwise) & (np.abs(pointwise) <= 1e4)
    points = pointwise[inside | np.isinf(pointwise)]
    kinks = np.isin(points, [0.0, *catalogue.breakpoints])
    # log(1 + exp(x)) and 1 + erf are absolute: an error eps near 1, times x, and times the slopes that follow.
    scale = np.minimum(1 + np.abs(points), 50)
    assert_agree(points, user.f(points), catalogue.f(points), rtol=4 * EPS, atol=8 * EPS * scale)
    smooth = points[~kinks]
    assert_agree(smooth, user.df(smooth), catalogue.df(smooth), rtol=8 * EPS, atol=8 * EPS * scale[~kinks])
    assert user.parity == catalogue.parity
    assert user.turning_points() == close(catalogue.turning_points())
    assert user.turning_points(1) == close(catalogue.turning_points(1))
    assert user.minimum.value == close(catalogue.minimum.value)
    assert user.limits == catalogue.limits
    assert user.derivative_limits == catalogue.derivative_limits
    assert shape(user) == shape(catalogue)
    assert user.step_values == catalogue.step_values


@pytest.mark.parametrize("name", ["gelu", "selu", "hardswish", "sigmoid", "threshold", "tanhshrink"])
@pytest.mark.parametrize("power", [-70, 60])
def test_derived_properties_do_not_depend_on_the_scale_of_f(name, power):
    unit = get(name)
    row = CATALOGUE[name].expr
    user = from_expression(f"({row})*2**({power})", params=dict(unit.params))
    scale = 2.0**power
    assert shape(user) == shape(unit)
    for order in (0, 1):
        assert user.turning_points(order) == unit.turning_points(order)
    for got, want in ((user.limits, unit.limits), (user.derivative_limits, unit.derivative_limits)):
        assert (got.left, got.right) == close((want.left * scale, want.right * scale))
    assert user.minimum.value == close(unit.minimum.value * scale)


def test_turning_points_in_closed_form():
    # x σ(x): 1 + x + e^x... at T, x = -(1 + W(1/e)); Φ(x) + x φ(x) turns at ±√2.
    assert get("silu").turning_points() == close((-1 - lambertw(math.exp(-1)).real,))
    assert from_expression("x*exp(-x)").turning_points() == (1.0,)
    assert from_expression("x**3 - 3*x").turning_points() == (-1.0, 1.0)
    assert from_expression("exp(-x**2)").turning_points(1) == close((-(2**-0.5), 2**-0.5))
    assert from_expression("where(x > 0, x**2 - 0.001*x, 0)").turning_points() == close((0.0005,))
    assert from_expression("abs(x**2 - 2*x)").turning_points() == (0.0, 1.0, 2.0)


@pytest.mark.parametrize(
    ("expr", "limits", "derivative_limits"),
    [
        ("x*exp(-x)", (-INF, 0), (INF, 0)),
        ("atan(x)", (-math.pi / 2, math.pi / 2), (0, 0)),
        ("sin(x)/(1 + x**2)", (0, 0), (0, 0)),
        ("sqrt(1 + x**2) - x", (INF, 0), (-2, 0)),
        ("abs(x)**0.1", (INF, INF), (0, 0)),
        ("x*(1 - tanh(x))", (-INF, 0), (2, 0)),
        ("1e-20*tanh(x) + 1e-20", (0, 2e-20), (0, 0)),
        ("1/log(2 + x**2)", (math.nan, math.nan), (0, 0)),  # too slow to be found: NaN, no guess
    ],
)
def test_limits(expr, limits, derivative_limits):
    user = from_expression(expr)
    for got, want in ((user.limits, limits), (user.derivative_limits, derivative_limits)):
        assert (got.left, got.right) == pytest.approx(want, rel=4 * EPS, abs=0, nan_ok=True)


@pytest.mark.parametrize(
    ("expr", "minimum"),
    [
        ("x*log(abs(x))", (-INF, None)),
        ("x**2*log(abs(x))", (-0.5 / math.e, math.exp(-0.5))),
        ("sin(x) + 2", (1, None)),
        ("where(x > 1, x, where(x < 1, 2 - x, 5))", (1, None)),
        ("sqrt(x)", (math.nan, None)),  # not defined on the whole line
        ("1/log(2 + x**2)", (math.nan, None)),
    ],
)
def test_minimum(expr, minimum):
    value, at = minimum
    got = from_expression(expr).minimum
    assert got.value == pytest.approx(value, rel=4 * EPS, abs=0, nan_ok=True)
    if expr.startswith("x**2*log"):
        assert abs(got.at) == close(at)
    elif not expr.startswith("sin"):
        assert got.at == at


def test_abs_and_sign_of_what_may_not_be_real():
    points = np.array([0.25, 0.5, 2.0])
    user = from_expression("abs(log(x))")
    assert_agree(points, user.f(points), np.abs(np.log(points)))
    assert_agree(points, user.df(points), np.sign(np.log(points)) / points, rtol=2 * EPS)
    assert np.isnan(user.f(-1.0))
    assert from_expression("x*sign(x)").df([-2.0, 0.0, 2.0]).tolist() == [-1, 0, 1]
    assert from_expression("abs(x)").df([-2.0, -0.0, 2.0]).tolist() == [-1, 0, 1]  # torch: 0 at 0


@pytest.mark.parametrize("solve", [fit, lambda f, bits: fit_from_output(f, "bfloat16", bits=bits), fit_joint])
def test_a_python_function_is_told_how_to_write_its_expression(solve):
    rule = (
        "activation must be of fitting.activations, written as get('gelu') or from_expression('x*sigmoid(1.7*x)'), got"
    )
    with pytest.raises(InputError) as caught:
        solve(lambda x: x * x, 1)
    text = "actfit.elementwise(f).expressions()[0][0]"
    assert str(caught.value) == f"{rule} the function <lambda>; the text for one of torch: {text}"
    with pytest.raises(InputError) as caught:
        solve("gelu", 1)
    assert str(caught.value) == f"{rule} 'gelu'"
