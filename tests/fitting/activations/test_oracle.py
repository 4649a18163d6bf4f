"""The oracle: 50 digits, the inverse on each strictly monotone branch, and f' as a function of f."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actfit.fitting.activations import Branch, from_expression, get, names, oracle
from actfit.fitting.errors import InputError
from tests.fitting.activations.catalogue_cases import known
from tests.fitting.activations.reference_values import FORMULAS

BRANCHES = [(name, index) for name in names() for index, branch in enumerate(get(name).branches) if branch.direction]
FLAT = [(name, index) for name in names() for index, branch in enumerate(get(name).branches) if not branch.direction]
every_branch = pytest.mark.parametrize(("name", "index"), BRANCHES)


def digits(got, want, floor=0):
    """How many decimal digits agree, relative to the larger of |want| and `floor`."""
    with mpmath.workdps(80):
        error = abs(mpmath.mpf(got) - mpmath.mpf(want)) / max(
            abs(mpmath.mpf(want)), mpmath.mpf(floor), mpmath.mpf("1e-400")
        )
        return 99 if error == 0 else float(-mpmath.log10(error))


@pytest.mark.parametrize("name", names())
@settings(max_examples=12)
@given(at=st.floats(-20, 20))
def test_fifty_digits(name, at):
    activation = known(name)
    with mpmath.workdps(600):
        want = FORMULAS[name](mpmath.mpf(at))
        # a central difference, good to some 240 digits
        step = mpmath.mpf(10) ** -120
        away = all(abs(at - kink) > 1e-3 for kink in activation.breakpoints)
        derivative = (FORMULAS[name](at + step) - FORMULAS[name](at - step)) / (2 * step) if away else None
    assert digits(oracle.f(activation, at), want) > 48
    if away:
        assert digits(oracle.df(activation, at), derivative, floor=1e-180) > 48


def test_known_constants():
    assert mpmath.nstr(oracle.f(get("sigmoid"), 1), 48) == "0.731058578630004879251159241821836274365144640165"
    assert oracle.df(get("tanh"), 0) == 1
    assert oracle.df(get("silu"), 0) == 0.5
    assert (oracle.f(get("gelu"), math.inf), oracle.df(get("gelu"), -math.inf)) == (mpmath.inf, 0)
    # A decimal as text is not the float64 next to it.
    assert oracle.f(get("relu"), "0.1") != oracle.f(get("relu"), 0.1)
    assert digits(oracle.f(get("relu"), "0.1"), mpmath.mpf(1) / 10) > 15


def test_precision_does_not_leak():
    before = mpmath.mp.prec
    oracle.df(get("gelu"), 0.3)
    oracle.inverse(get("silu"), 0.3, get("silu").branches[1])
    with pytest.raises(InputError):
        oracle.inverse(get("tanh"), 2, get("tanh").branches[0])
    assert mpmath.mp.prec == before
    with mpmath.workdps(5):
        value = oracle.f(get("sigmoid"), 1)
    assert digits(value, "0.731058578630004879251159241821836274365144640165") > 47


def inside(branch):
    lo, hi = max(branch.lo, -15.0), min(branch.hi, 30.0)
    return st.floats(lo, hi, exclude_min=math.isfinite(branch.lo), exclude_max=math.isfinite(branch.hi))


@every_branch
@settings(max_examples=5)
@given(data=st.data())
def test_derivative_of_the_output_is_the_derivative(name, index, data):
    activation = known(name)
    branch = activation.branches[index]
    at = mpmath.mpf(data.draw(inside(branch)))
    y, derivative, second_derivative = oracle.f(activation, at), oracle.df(activation, at), curvature(activation, at)
    with mpmath.workdps(60):
        # y has a relative error of 1e-50: x has that divided by f', and g = f'(x) has the error of x times f''.
        lost = abs(second_derivative / derivative) * max(abs(y), mpmath.mpf("1e-45")) if derivative else mpmath.inf
        tolerance = mpmath.mpf(10) ** -48 * (abs(derivative) + lost + abs(second_derivative * at) + mpmath.mpf("1e-10"))
        if abs(lost) < 1e3:
            assert abs(oracle.df_of_output(activation, y, branch) - derivative) <= tolerance


def curvature(activation, at):
    piece = next(piece for piece in activation.pieces if piece.lo <= at <= piece.hi)
    with mpmath.workdps(60):
        return piece.d2.mp(mpmath.mpf(at))


@every_branch
@settings(max_examples=5)
@given(data=st.data())
def test_inverse_undoes_f(name, index, data):
    activation = known(name)
    branch = activation.branches[index]
    at = data.draw(inside(branch))
    y = oracle.f(activation, at)
    x = oracle.inverse(activation, y, branch)
    assert branch.lo <= x <= branch.hi
    assert digits(oracle.f(activation, x), y, floor=1e-30) > 44
    derivative = abs(oracle.df(activation, at))
    if derivative > 1e-30:  # y has 50 digits; a small f' loses some of them
        assert digits(x, at, floor=1) > 46 + min(0, float(mpmath.log10(derivative)))


@pytest.mark.parametrize(("name", "index"), FLAT)
def test_flat_branches_have_no_inverse(name, index):
    activation = get(name)
    branch = activation.branches[index]
    for y in (0, 1, float(activation.f(np.clip(branch.lo + 0.1, -5, 5)))):
        for ask in (oracle.inverse, oracle.df_of_output):
            with pytest.raises(InputError, match=f"branch .* of {name} is constant: it has no inverse"):
                ask(activation, y, branch)


@pytest.mark.parametrize(
    ("name", "index", "outside"),
    [
        ("sigmoid", 0, [-0.1, 0, 1, 1.1]),  # 0 and 1 are limits, never values
        ("elu", 0, [-1, -1.5]),
        ("gelu", 0, [0, 0.1, -0.17]),
        ("gelu", 1, [-0.17, -1]),
        ("relu", 1, [-1e-40, -1]),
        ("relu6", 1, [-0.001, 6.001]),
        ("threshold", 1, [0.05, 0.0999]),  # the value 20 at the break itself is not of this branch
        ("hardshrink", 2, [0.4, 0, -1]),
        ("hardswish", 1, [-0.376, 0.001]),
    ],
)
def test_what_a_branch_does_not_reach(name, index, outside):
    activation = get(name)
    for y in [*outside, math.nan, math.inf, -math.inf]:
        with pytest.raises(InputError, match="y must lie in the range of the branch, got ") as caught:
            oracle.inverse(activation, y, activation.branches[index])
        assert "\n" not in str(caught.value)


def test_a_jump_inside_a_branch_is_not_reached():
    step = from_expression("where(x > 0, x + 1, x)")
    (branch,) = step.branches
    assert branch == Branch(-math.inf, math.inf, 1)
    for y in (0.3, 0.999):
        with pytest.raises(InputError, match="y must lie in the range"):
            oracle.inverse(step, y, branch)
    assert float(oracle.inverse(step, -2, branch)) == -2.0
    assert float(oracle.inverse(step, 3, branch)) == 2.0


@pytest.mark.parametrize(
    ("name", "index", "y", "x"),
    [
        ("gelu", 1, "1e300", "1e300"),
        ("gelu", 1, "-1e-300", "-2e-300"),  # f(x) is x/2 near 0
        ("sigmoid", 0, "1e-300", None),
        ("tanhshrink", 0, "1e-90", None),
        ("softsign", 0, "0.99999999999999999999", None),
    ],
)
def test_far_and_tiny_outputs(name, index, y, x):
    activation = get(name)
    got = oracle.inverse(activation, y, activation.branches[index])
    if x:
        assert digits(got, x) > 17
    assert digits(oracle.f(activation, got), y) > 29


def test_at_the_minimum_itself():
    gelu = get("gelu")
    (turn,) = gelu.turning_points()
    for branch in gelu.branches:
        # f at the float64 nearest to T: an ulp from the true minimum, reached on the branch that contains it.
        y = oracle.f(gelu, turn)
        assert abs(oracle.inverse(gelu, y, branch) - turn) < 1e-15
        assert abs(oracle.df_of_output(gelu, y, branch)) < 1e-15


def test_user_expressions():
    user = from_expression("x**3 + x")
    (branch,) = user.branches
    assert oracle.inverse(user, 10, branch) == 2
    assert oracle.df_of_output(user, 10, branch) == 13
    assert oracle.inverse(user, -10, branch) == -2
    decay = from_expression("-b*x", params={"b": 4.0})
    assert oracle.inverse(decay, 8, decay.branches[0]) == -2
    hump = from_expression("exp(-x**2)")
    left, right = (oracle.inverse(hump, 0.5, branch) for branch in hump.branches)
    with mpmath.workdps(60):
        assert left == -right
        want = mpmath.sqrt(mpmath.ln2)
    assert digits(right, want) > 48
    half_line = from_expression("where(x > 1, log(x), x - 1)")
    assert digits(oracle.inverse(half_line, 2, half_line.branches[0]), mpmath.exp(2)) > 14
