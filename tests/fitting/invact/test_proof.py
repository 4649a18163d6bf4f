"""Bounds of |q - g|: never below what the oracle finds, within 1 % of it, infinite at poles, moved by what moves q."""

import math
from functools import cache

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sympy import Gt, Integer, Piecewise, Rational, sqrt, true

from actfit.fitting.activations import from_expression, get, names, oracle
from actfit.fitting.activations.functions import maximum, minimum
from actfit.fitting.invact.branches import split
from actfit.fitting.invact.engines.closed_form import closed_form
from actfit.fitting.invact.engines.papers import published
from actfit.fitting.invact.exact import derivative_from_output, two_floats
from actfit.fitting.invact.formula import Candidate, Form
from actfit.fitting.invact.proof import RESOLVED, prove
from actfit.fitting.invact.proof.difference import Difference
from actfit.fitting.invact.proof.ranges import inside
from actfit.fitting.invact.variable import S, Variable, Y, constant

LEFT, RIGHT = 0, 1
AT = {"gelu": -0.16997120747990363, "silu": -0.27846454276107385}


def root(name, **options):
    """s = sqrt(y - f(T)) with f(T) as kernels have it, in two float32."""
    high, low = two_floats(split(get(name)).branches[LEFT].arcs[0].anchors[1].y)
    first = float(np.float32(high))
    return Variable(order=2, anchor=first, anchor_low=high - first + low, **options).rounded()


def polynomial(values, engine="by hand"):
    """c0 + s*(c1 + s*(...))."""
    q = Integer(0)
    for i in reversed(range(len(values))):
        q = constant(i) + S * q
    return Form(q, tuple(values), engine)


def fitted(name, branch, variable, degree, y):
    """The polynomial in s of least squares at outputs y, its constants float32."""
    where = split(get(name)).branches[branch]
    s = variable(y)
    values = np.polynomial.Polynomial.fit(s, derivative_from_output(where, y), degree).convert().coef
    return Candidate(polynomial(values.tolist()), variable).rounded()


def rational(top, bottom, variable):
    """s*(top)/(1 + s*(bottom))."""
    c = [constant(i) for i in range(len(top) + len(bottom))]
    above = sum((S**k * c[k] for k in range(len(top))), Integer(0))
    below = sum((S ** (k + 1) * c[len(top) + k] for k in range(len(bottom))), Integer(1))
    return Candidate(Form(S * above / below, (*top, *bottom), "by hand"), variable)


def tail():
    """1 - (1 + c1*s + c2*s²)*2**(c3*s²)."""
    q = 1 + (-1 + constant(0) * S + constant(1) * S**2) * Integer(2) ** (constant(2) * S**2)
    return Candidate(Form(q, (1.4, -0.35, -1.6), "by hand"), root("gelu"))


def near(name, branch, far):
    at = AT[name]
    end = far if branch == RIGHT else 0.0
    return at + (end - at) * (0.5 - 0.5 * np.cos(np.linspace(0, math.pi, 400))) ** 2


KINDS = {  # each kind that engines make: activation, branch, and what makes the candidate
    "polynomial": ("silu", LEFT, lambda: fitted("silu", LEFT, root("silu"), 5, near("silu", LEFT, 0.0))),
    "rational silu": ("silu", LEFT, lambda: rational((-0.664524, 1.258664), (-0.44401,), root("silu"))),
    "rational gelu": (
        "gelu",
        LEFT,
        lambda: rational((-0.926683, 4.329079, -5.048458), (-3.369186, 2.440548), root("gelu")).rounded(),
    ),
    "half angle": ("gelu", LEFT, lambda: fitted("gelu", LEFT, root("gelu", end=0.0), 12, near("gelu", LEFT, 0.0))),
    "cut off": ("gelu", RIGHT, lambda: fitted("gelu", RIGHT, root("gelu", high=5.0), 10, near("gelu", RIGHT, 5.0))),
    "16 bit": ("silu", RIGHT, lambda: fitted("silu", RIGHT, kept(), 4, near("silu", RIGHT, 6.0))),
    "tail": ("gelu", RIGHT, tail),
    "even": (
        "tanhshrink",
        0,
        lambda: fitted("tanhshrink", 0, Variable(3, 0.0, even=True, high=6.0), 9, np.linspace(0.1, 1.81, 400) ** 3),
    ),
    "clamped": ("softplus", 0, lambda: Candidate(polynomial((0.1, 0.7)), Variable(low=0.0, high=1.25))),
    "paper left": ("gelu", LEFT, lambda: published("gelu")[0]),
    "paper right": ("gelu", RIGHT, lambda: published("gelu")[1]),
}


def kept():
    return Variable(order=2, anchor=AT["silu"] + 2e-4, low=1e-3, high=6.0).rounded()


@cache
def made(kind):
    """Activation, branch and candidate."""
    name, number, make = KINDS[kind]
    return get(name), split(get(name)).branches[number], make()


def oracle_error(activation, candidate, at):
    with mpmath.workdps(50):
        y = oracle.f(activation, at)
        return abs(candidate.tapes[1].mp(y, candidate.tapes[0].mp(y)) - oracle.df(activation, at))


def places(branch):
    """Random, next to each finite end, and far away."""
    rng = np.random.default_rng(3)
    near_end = np.geomspace(1e-16, 1.0, 60)
    ends = [end for end in (branch.lo, branch.hi) if math.isfinite(end)] or [0.0]
    far = np.array([50.0, 1e2, 1e3, 1e6, 1e12, 1e30, 3.4e38])
    points = [rng.uniform(-12.0, 12.0, 300), far, -far, *ends]
    points += [end + sign * near_end for end in ends for sign in (-1, 1)]
    points = np.concatenate([np.atleast_1d(part) for part in points])
    return points[(points >= branch.lo) & (points <= branch.hi)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_point_exceeds_the_bound(kind):
    activation, branch, candidate = made(kind)
    proven = prove(candidate, branch)
    errors = [oracle_error(activation, candidate, float(at)) for at in [*places(branch), proven.at]]
    assert max(errors) <= proven.upper
    assert float(errors[-1]) == pytest.approx(proven.sampled, rel=1e-12)
    assert 0 <= proven.slack == proven.upper / proven.sampled - 1 <= 0.01


def of(expression, variable=None, values=()):
    return Candidate(Form(expression, values, "by hand"), variable or Variable())


@pytest.mark.parametrize(
    "q",
    [
        S / (S - Rational(1, 4)),  # a pole inside
        S + Rational(1, 10**12) / (S - Rational(1, 4)) ** 2,
        S + Rational(1, 10**9) / Y,  # at the end that y approaches
        S + sqrt(Y),  # not real
        S + sqrt(S - Rational(1, 4)),  # not real on a part
    ],
)
def test_a_pole_or_a_root_of_a_negative_number_has_no_bound(q):
    proven = prove(of(q, root("silu")), split(get("silu")).branches[LEFT])
    assert proven.upper == math.inf
    assert proven.slack == math.inf


@pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("power", [0, 1, 7])
def test_a_perturbation_of_an_exact_form_is_what_is_bounded(size, power):
    """sigmoid: q - g = size·y**power, whose supremum, at y -> 1, is `size`."""
    proven = prove(of(Y * (1 - Y) + Rational(size) * Y**power), split(get("sigmoid")).branches[0])
    assert size <= proven.upper <= 1.01 * size


OPEN = {"tanhshrink", "gelu", "gelu_tanh", "quick_gelu", "silu", "mish"}  # without a closed form


@pytest.mark.parametrize("name", sorted({*names()} - OPEN))
def test_closed_forms_have_no_error(name):
    whole = split(get(name))
    for branch in whole.branches:
        proven = prove(Candidate(Form(closed_form(whole, branch), (), "closed"), Variable()), branch)
        assert proven.upper <= RESOLVED
        assert proven.slack == 0.0


def test_flat_and_straight_parts():
    branch = split(get("leaky_relu", negative_slope=0.25)).branches[0]
    assert prove(of(Integer(1)), branch).upper == pytest.approx(0.75, rel=1e-2)
    flat = split(get("hardtanh")).branches[0]
    half = prove(of(Piecewise((Integer(1), Gt(Y, 0)), (Rational(1, 4), true))), flat)
    assert half.upper == pytest.approx(1.0, rel=1e-2)  # 1 on the flat part y = 1
    assert prove(of(Rational(1, 4)), flat).upper == pytest.approx(0.75, rel=1e-2)


def test_where_g_has_no_bound_the_error_is_relative():
    branch = split(get("relu2")).branches[0]
    proven = prove(of(2 * sqrt(maximum(Y, 0)) + Rational(1, 10**6) * minimum(Y, 9)), branch)
    assert 1.5e-6 <= proven.upper <= 1.515e-6  # at x = 3, where g = 6


def test_a_kink_of_the_formula_may_be_the_worst_place():
    """q is cut off at y = 1/2, g is not: the error is largest at one end of what is cut, 1/2 or 1."""
    branch = split(get("sigmoid")).branches[0]
    bump = minimum(Y, Rational(1, 2)) - maximum(Y - Rational(1, 2), 0)  # a tent, 1/2 at y = 1/2
    proven = prove(of(Y * (1 - Y) + Rational(1, 10**5) * bump), branch)
    assert 0.5e-5 <= proven.upper <= 0.505e-5
    assert proven.at == pytest.approx(0.0, abs=1e-2)


CUBIC = st.tuples(*[st.floats(-3, 3, width=32)] * 4)


@pytest.mark.slow
@given(CUBIC)
@example((0.0, 0.0, 0.0, 0.0))
@example((0.0, -0.66, 0.96, 1.0))
@settings(max_examples=30)
def test_random_cubics(values):
    activation = get("silu")
    branch = split(activation).branches[LEFT]
    candidate = Candidate(polynomial(values), root("silu"))
    proven = prove(candidate, branch)
    at = branch.hi - np.concatenate([np.geomspace(1e-12, 1, 200), np.linspace(1, 45, 4000), [1e3, 1e9]])
    largest = float(np.max(np.abs(candidate(activation.f(at)) - activation.df(at))))
    assert largest - 1e-14 <= proven.upper <= 1.01 * proven.sampled
    assert proven.sampled <= 1.01 * largest


@pytest.mark.slow
@given(st.floats(-6, 6), st.floats(1e-6, 3), st.sampled_from(sorted(KINDS)), st.floats(-1, 1))
@settings(max_examples=60)
def test_an_enclosure_of_a_cell_holds_its_points(middle, width, kind, place):
    activation, branch, candidate = made(kind)
    arcs = [arc for arc in branch.arcs if arc.lo < middle - width and middle + width < arc.hi]
    if arcs:
        upper = Difference(candidate, arcs[0]).over(middle - width, middle + width, 0.0).upper
        assert oracle_error(activation, candidate, middle + place * width) <= upper


def test_the_remainder_of_a_series_counts():
    """The sums of the first terms of exp at 10, and of x**14, which has none of them, are too small."""
    growth = split(from_expression("exp(x)")).branches[0].arcs[0]
    assert Difference(of(Integer(0)), growth).over(-10.0, 10.0, 0.0).upper >= math.exp(10)
    (steep,) = split(from_expression("x + x**15/15")).branches[0].arcs
    upper = Difference(of(Integer(1)), steep).over(-1.0, 1.0, 0.0).upper
    assert 1.0 <= upper <= 1.0 + 1e-9


def test_conditions_inside_an_interval():
    first, second = Integer(1), Integer(2)
    assert inside(Piecewise((first, Gt(Y, 1)), (second, true)), 1.0, 2.0) == first
    assert inside(Piecewise((first, Gt(Y, 2)), (second, true)), 1.0, 2.0) == second
    assert inside(Piecewise((first, Gt(Y, 1)), (second, true)), 1.0, 1.0) == second
    assert inside(Piecewise((first, Gt(Y, 1.001)), (second, true)), 1.0, 2.0).has(Y)
    assert inside(Piecewise((first, Gt(Y, Rational(1001, 1000))), (second, true)), 1.0, 2.0, 2.0**-8) == first


def test_a_double_exponential():
    branch = split(from_expression("x*exp(-exp(-x))", name="gumbel")).branches[LEFT]
    proven = prove(of(Y), branch)
    assert 0 < proven.upper <= 1.01 * proven.sampled
