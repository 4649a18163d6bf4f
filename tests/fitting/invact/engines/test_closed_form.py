"""Closed forms of g(y) = f'(f⁻¹(y)): their text, their values against the oracle, at the ends and beyond."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from sympy import sstr

from actfit.fitting.activations import from_expression, get, names, oracle
from actfit.fitting.activations.tape import Tape
from actfit.fitting.invact.branches import split
from actfit.fitting.invact.engines import chain_rule
from actfit.fitting.invact.engines.closed_form import closed_form
from actfit.fitting.invact.variable import Y
from tests.fitting.activations.catalogue_cases import PARAMETERS

INF = math.inf
OPEN = ("gelu", "gelu_tanh", "quick_gelu", "silu", "mish", "tanhshrink")
CATALOGUE = [name for name in names() if name not in OPEN]

EXPRESSIONS = [
    "3*tanh(2*x+1)-4",
    "log(1+exp(2*x))",
    "x**3",
    "x**2",
    "2*x**2-12*x+5",
    "x*abs(x)",
    "exp(-x)",
    "1/(1+exp(-x))",
    "(exp(2*x)-1)/(exp(2*x)+1)",
    "cosh(x)-1",
    "atan(3*x)",
    "sqrt(1+x**2)-1",
    "3*softsign(2*x+1)-4",
    "tanh(x)**3",
    "where(x>0, x, 0.1*expm1(3*x))",
    "where(x>0, 1, 0)",
    "where(x>=1, 2*x+1, exp(x-1))",
    "where(x<=1, 0, (x-1)**2/2 + x - 1)",
    "where(x>=0, -x, -2*x)",
    "where(x>0, 3*expm1(x), 2*x)",
    "where(x>1, 3, where(x<-1, -3, x**3))",
]


def forms_of(activation):
    parts = split(activation)
    return [closed_form(parts, branch) for branch in parts.branches]


def branch_index(parts, x):
    """The index of the branch that x is on: the branch bit."""
    if parts.border is None:
        return 0
    return int(x > parts.border if parts.border_is_left else x >= parts.border)


@pytest.mark.parametrize("name", OPEN)
def test_open_functions_have_none(name):
    assert not any(forms_of(get(name)))


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_values_of_expressions(text):
    activation = from_expression(text)
    check_at_50_digits(activation, forms_of(activation), tolerance=1e-40)


def check_at_50_digits(activation, forms, tolerance):
    """g(f(x)) = f'(x) at many x, the kinks among them; f and f' are the oracle's."""
    parts = split(activation)
    tapes = [Tape(form, Y) for form in forms]
    points = np.random.default_rng(3).normal(0, 3, 25)
    edges = [end for branch in parts.branches for arc in branch.arcs for end in (arc.lo, arc.hi) if math.isfinite(end)]
    points = [*points, *edges, *(edge + step for edge in edges for step in (-0.1, 0.1)), -30.0, 30.0]
    flat = [arc for branch in parts.branches for arc in branch.arcs if arc.direction == 0]
    for x in points:
        y, derivative = oracle.f(activation, x), oracle.df(activation, x)
        if any(y == arc.range[0] for arc in flat):
            derivative = 0
        with mpmath.workdps(60):
            error = abs(tapes[branch_index(parts, x)].mp(y) - derivative)
        # An anchor is a float64 next to the true one: y there is off by 1e-33, and its root by 1e-16.
        assert error <= (tolerance if x not in edges else 1e-15) * (1 + abs(derivative)), f"x = {x}"


@pytest.mark.parametrize(("name", "params"), [case for case in PARAMETERS if case[0] not in OPEN])
def test_catalogue_at_50_digits(name, params):
    activation = get(name, **params)
    check_at_50_digits(activation, forms_of(activation), tolerance=1e-40)


def inside(low, high):
    """Float64 numbers of the open interval: near its ends, near 0, and between."""
    few = [1e-300, 1e-30, 1e-8, 0.003, 0.2, 0.5, 0.77, 1.0, 1.4, 5.5, 30.0, 700.0]
    numbers = [0.0, *few, *(-number for number in few)]
    for end in (low, high):
        if math.isfinite(end):
            numbers += [end + sign * step for sign in (1, -1) for step in (1e-3, 1e-9, 1e-15)]
            numbers += [float(np.nextafter(end, 0)), float(np.nextafter(end, 9))]
    return sorted({number for number in numbers if low < number < high})


# In ulps of g; where g is y + constant and the constant no float64, it is the constant's rounding that counts.
@pytest.mark.parametrize(
    ("name", "params", "constant"),
    [
        ("sigmoid", {}, 0),
        ("tanh", {}, 0),
        ("logsigmoid", {}, 0),
        ("relu2", {}, 0),
        ("elu", {}, 0),
        ("elu", {"alpha": 2.3}, 0),
        ("selu", {}, 1.0507009873554805 * 1.6732632423543772),
    ],
)
def test_monotone_forms_within_2_ulp_in_float64(name, params, constant):
    activation = get(name, **params)
    (form,) = forms_of(activation)
    branch = activation.branches[-1]
    low, high = split(activation).branches[0].range
    points = np.array(inside(low, high))
    assert len(points) > 10
    for y, got in zip(points, Tape(form, Y).numpy(points), strict=True):
        true = oracle.df_of_output(activation, y, branch)
        allowed = 2 * math.ulp(float(true)) + math.ulp(constant) / 2 * bool(constant)
        assert abs(mpmath.mpf(float(got)) - true) <= allowed, f"y = {y}: {got} for {mpmath.nstr(true, 20)}"


@pytest.mark.parametrize(
    ("name", "params", "index", "y", "derivative"),
    [
        ("relu", {}, 0, 0.0, 0),
        ("relu", {}, 0, 5e-324, 1),
        ("leaky_relu", {"negative_slope": -0.3}, 0, 0.0, -0.3),
        ("relu6", {}, 0, 6.0, 0),
        ("hardsigmoid", {}, 0, 1e-300, 1 / 6),
        ("hardswish", {}, 0, 0.0, 0),
        ("hardswish", {}, 0, -5e-324, -0.5),
        ("hardswish", {}, 0, -0.375, 0),
        ("hardswish", {}, 1, 3.0, 1),
        ("hardshrink", {}, 0, 0.0, 0),
        ("hardshrink", {}, 0, -0.5, 1),
        ("softshrink", {}, 0, -5e-324, 1),
        ("elu", {}, 0, 0.0, 1),
        ("threshold", {}, 0, 20.0, 0),
        ("threshold", {}, 1, 20.0, 1),
    ],
)
def test_g_at_kinks_is_the_derivative_of_the_activation(name, params, index, y, derivative):
    tape = Tape(forms_of(get(name, **params))[index], Y)
    assert tape.numpy(np.array(y)) == pytest.approx(derivative, rel=3e-16, abs=0)


@pytest.mark.parametrize("name", CATALOGUE)
def test_next_to_the_range_g_is_the_end_value(name):
    """Outside by the rounding of a 16-bit or 32-bit y: off by no more than a few of these roundings, and never NaN."""
    parts = split(get(name))
    for branch, form in zip(parts.branches, forms_of(get(name)), strict=True):
        tape = Tape(form, Y)
        for end, direction in zip(branch.range, (-1, 1), strict=True):
            for rounding in (2.0**-53, 2.0**-24, 2.0**-9) if math.isfinite(end) else ():
                # What a flat part has at its y, and a form elsewhere, holds at the end itself and beyond.
                here = tape.numpy(np.array(end))
                beyond = np.array(end + direction * rounding * max(abs(end), 1e-3))
                assert abs(tape.numpy(beyond) - here) <= 4 * rounding * max(abs(end), 1e-3)
                assert np.isfinite(tape.numpy32(beyond))


@pytest.mark.parametrize("name", CATALOGUE)
def test_no_nan_at_any_finite_output_in_float32(name):
    parts = split(get(name))
    for branch, form in zip(parts.branches, forms_of(get(name)), strict=True):
        bits = np.arange(0, 2**32, 65521, dtype=np.uint64).astype(np.uint32)
        every = bits.view(np.float32)
        low, high = branch.range
        with np.errstate(invalid="ignore"):
            every = every[np.isfinite(every) & (every >= low) & (every <= high)]
        values = Tape(form, Y).numpy32(np.array([*every, low, high]))
        assert not np.isnan(values[:-2]).any()
        assert np.isfinite(values[:-2]).all()
        # The ends too, infinite or not: only 2·sqrt(y) is infinite there.
        assert not np.isnan(values[-2:]).any()


@pytest.mark.parametrize("name", CATALOGUE)
def test_nan_gives_nan_where_a_case_depends_on_y(name):
    """Where g is a constant in every case there is nothing to carry it, and the last case is taken."""
    for form in forms_of(get(name)):
        assert np.isnan(Tape(form, Y).numpy(np.array(math.nan))) == form.has(Y) & (not steps(form))


def steps(form):
    return form.is_Piecewise and not any(value.has(Y) for value, _ in form.args)


@pytest.mark.parametrize(
    ("name", "index", "y", "derivative"),
    [
        ("relu", 0, INF, 1),
        ("hardshrink", 0, -INF, 1),
        ("hardswish", 1, INF, 1),
        ("softplus", 0, INF, 1),
        ("selu", 0, INF, 1.0507009873554805),
        ("relu2", 0, INF, INF),
    ],
)
def test_at_an_infinite_output(name, index, y, derivative):
    assert Tape(forms_of(get(name))[index], Y).numpy(np.array(y)) == derivative


def test_a_form_that_misses_the_derivative_is_not_given(monkeypatch):
    """The guard behind the rules: were one of them wrong, there would be no closed form, and an engine would fit."""
    assert forms_of(get("tanh")) != [None]
    monkeypatch.setitem(chain_rule.FUNCTIONS, "tanh", (lambda v, _: 1 - v, None))
    assert forms_of(get("tanh")) == [None]


@pytest.mark.parametrize(
    "text",
    [
        "x*sigmoid(x)",
        "x+softsign(x)",
        "erf(x)",
        "x**3+x",
        "exp(-x**2)",  # y·sqrt(-log(y)) is NaN at y = 0
        "tanh(x**2)",  # and the inverse of tanh is infinite at y = 1
        "log(cosh(x))",  # exp(-y)·sqrt(exp(2y) - 1) overflows
        "where(x>0, x*sigmoid(x)+1, x)",  # one arc has none
        "where(x>0, -1/x, x)",  # f has a pole at the kink
    ],
)
def test_none_where_no_form_can_be_evaluated(text):
    assert None in forms_of(from_expression(text))


def test_a_branch_may_end_at_a_pole():
    left, right = forms_of(from_expression("abs((relu(x)+2)/(relu(x)-1))"))
    assert (sstr(left), sstr(right)) == ("Piecewise((0, y <= 2), ((y + 1)**2/3, True))", "-(1 - y)**2/3")


NUMBERS = st.integers(-40, 40).filter(bool).map(lambda k: k / 8)
COMPOSITIONS = (
    *(
        f"{outer}(U)"
        for outer in ("sigmoid", "tanh", "softplus", "softsign", "expm1", "exp", "sinh", "cosh", "atan", "sech")
    ),
    *("log1p(exp(U))", "1/(1+exp(U))", "(U)**2", "(U)**3", "abs(U)", "relu(U)**2", "sqrt(1+(U)**2)", "2**(U)"),
)


@pytest.mark.slow
@settings(max_examples=60)  # three a composition; each takes a fifth of a second
@example("sinh(U)", 1 / 8, 1.5, 0.75, 1 / 8, [0, 0, 0])  # 8·y overflows before y does
@given(
    st.sampled_from(COMPOSITIONS),
    NUMBERS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.lists(st.integers(-60, 60), min_size=3, max_size=3),
)
def test_affine_compositions(outer, a, b, c, d, points):
    activation = from_expression(f"A*{outer.replace('U', 'B*x + C')} + D", params={"A": a, "B": b, "C": c, "D": d})
    parts, forms = split(activation), forms_of(activation)
    assert None not in forms
    for point in points:
        at = point / 20
        assume(at not in activation.breakpoints)
        assume(parts.border is None or abs(at - parts.border) > 1e-9)  # a float64: T itself is next to it
        y, derivative = oracle.f(activation, at), oracle.df(activation, at)
        with mpmath.workdps(60):
            got = Tape(forms[branch_index(parts, at)], Y).mp(y)
        # An error of y of 1e-50 becomes one of 1e-25 under a root.
        assert abs(got - derivative) <= 1e-22 * (1 + abs(derivative)) * (1 + abs(y))
