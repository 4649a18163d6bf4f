"""Fits: what they reach, by which rule, for the catalogue and for the user's own functions."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actfit.fitting.activations import from_expression, get
from actfit.fitting.errors import InputError
from actfit.fitting.invact.branches import split
from actfit.fitting.invact.engines import ALL, DEFAULT, minimax, parse_engines
from actfit.fitting.invact.engines.minimax import Shape
from actfit.fitting.invact.engines.problem import Tail, Target
from actfit.fitting.invact.engines.stretch import stretch_of, variables
from actfit.fitting.invact.error_floor import information_floor
from actfit.fitting.invact.exact import derivative_from_output
from actfit.fitting.invact.formula import Candidate, evaluate, pair_price, read, spell
from actfit.fitting.invact.judge import rule_for
from actfit.fitting.invact.solve import fit
from actfit.fitting.invact.variable import Variable
from actfit.fitting.weights import named


def samples(function, lo=0.0, hi=1.0, count=300):
    """A target of the least largest error on [lo, hi], points close to both ends."""
    s = lo + (hi - lo) * (1 - np.cos(np.linspace(0, math.pi, count))) / 2
    return Target(s, s, function(s))


def alternations(error, level):
    """How often the error reaches ±level with alternating sign: de la Vallée Poussin's count."""
    signs = np.sign(error[np.abs(error) >= level])
    return 1 + int(np.sum(signs[1:] != signs[:-1]))


@pytest.mark.parametrize("numerator", [2, 4, 6])
def test_polynomials_are_the_best_that_there_are(numerator):
    # exp on [0, 1]: the error of the best polynomial alternates degree + 2 times (Chebyshev).
    target = samples(np.exp)
    values, cost = minimax.fit(Shape(numerator), target, {})
    error = evaluate(Shape(numerator).form(values.tolist()), target.y, target.s) - target.value
    # 1 %: ENOUGH, the promise at which the polish stops. It is a proof: no polynomial errs less at these points.
    assert alternations(error, 0.99 * cost) >= numerator + 2


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 3), (4, 2)])
def test_rational_functions_are_the_best_that_there_are(shape):
    numerator, denominator = shape
    target = samples(lambda s: np.sqrt(s + 0.01))
    fitted = minimax.fit(Shape(numerator, denominator), target, {})
    assert fitted is not None
    error = evaluate(Shape(numerator, denominator).form(fitted[0].tolist()), target.y, target.s) - target.value
    # Of a rational function without defect the error alternates numerator + denominator + 2 times (Achieser).
    assert alternations(error, 0.99 * fitted[1]) >= numerator + denominator + 2


def test_a_formula_is_found_where_there_is_one():
    target = samples(lambda s: s * (1.5 - 2.0 * s) / (1 + 0.5 * s))
    values, cost = minimax.fit(Shape(2, 1, zero=True), target, {})
    assert cost < 1e-12
    assert values == pytest.approx([1.5, -2.0, 0.5], rel=1e-9)


def test_a_function_with_a_pole_between_the_points_is_refused():
    # The best rational function of degrees 0, 1 for |s - 0.5| has its pole there or near it, wherever points lie.
    target = samples(lambda s: 1 / (s - 0.50123), count=40)
    assert minimax.fit(Shape(1, 1), target, {}) is None


def test_a_formula_is_zero_at_t_where_that_is_asked_and_tends_to_its_limit():
    tail = Tail(-1.3, 2, 1.0)
    form = Shape(3, zero=True, center=0.75, tail=tail).form([1.0, -0.5, 0.25, -1.3])
    assert evaluate(form, np.zeros(1), np.zeros(1))[0] == 0.0
    assert evaluate(form, np.zeros(1), np.full(1, 30.0))[0] == 1.0


def test_one_formula_for_both_branches_costs_one_evaluation():
    form = Shape(3).form([0.1, 0.2, 0.3, 0.4])
    right = Candidate(form, Variable(2, -0.25, low=1e-4, high=3.0))
    left = Candidate(form, Variable(2, -0.25, low=1e-4, high=3.0, negative=True))
    assert pair_price(left, right).total == right.price.total + 1  # and the selection of the sign
    other = Candidate(Shape(3).form([0.1, 0.2, 0.3, 0.5]), right.variable)
    assert pair_price(other, right).total == right.price.total + 1  # and the selection of the constant
    longer = Candidate(Shape(4).form([0.1, 0.2, 0.3, 0.4, 0.5]), right.variable)
    assert pair_price(longer, right).total == right.price.total + 4 + 1  # s is shared


@given(
    st.lists(st.sampled_from(["s", "y", "1.5", "c0", "3"]), min_size=2, max_size=4),
    st.lists(st.sampled_from("+-*"), min_size=3, max_size=3),
    st.sampled_from(["{}", "sqrt(max({}, 0))", "abs({})", "2**({})", "min({}, 7)", "1/(1 + ({})**2)", "exp({})"]),
)
def test_a_formula_is_read_back_as_it_was_spelled(words, signs, around):
    text = around.format("".join(word + sign for word, sign in zip(words, signs, strict=False))[:-1])
    expression = read(text, {"c0": 0.0})
    assert read(spell(expression), {"c0": 0.0}) == expression


@pytest.mark.slow
@settings(max_examples=8)
@given(st.floats(0.2, 5.0), st.floats(0.2, 5.0), st.sampled_from([1, -1]), st.sampled_from(["sigmoid", "Phi"]))
def test_scaled_relatives_of_silu_and_gelu_are_fitted(a, b, sign, gate):
    # 1 % of the largest derivative: what a handful of constants reach, whatever the scales.
    activation = from_expression(f"a*x*{gate}(b*x)", "relative", {"a": sign * a, "b": b})
    limit = 0.01 * a
    fitted = fit(activation, "bfloat16", engines=("minimax",), max_error=limit)
    assert fitted.best.pointwise <= limit
    split = fitted.error_floor.split
    for branch, candidate, bound in zip(split.branches, fitted.best.candidates, fitted.bounds, strict=True):
        x = np.linspace(max(branch.lo, -20.0 / b), min(branch.hi, 20.0 / b), 501)[1:-1]
        y = activation.f(x)
        error = np.abs(candidate(y) - activation.df(x))
        # y is rounded to float64: next to T that moves g by up to the root of it, 2e-8 in parts of f'.
        assert error.max() <= bound.upper + 1e-7 * a


@pytest.mark.slow
@pytest.mark.parametrize("expr", ["x + tanh(x)", "tanh(x) + tanh(3*x)/5"])
def test_monotone_functions_without_a_closed_form_need_no_bit(expr):
    fitted = fit(from_expression(expr), "bfloat16", engines=("minimax",))
    assert len(fitted.best.candidates) == 1
    assert fitted.error_floor.split.border is None
    y = fitted.activation.f(np.linspace(-9, 9, 301))
    assert (
        np.abs(fitted.best.candidates[0](y) - derivative_from_output(fitted.error_floor.split.branches[0], y)).max()
        < 0.02
    )


@pytest.mark.parametrize(
    ("expr", "reason"),
    [
        ("sin(x)", "limits"),
        ("x*exp(-x**2) + x**3/50", "two monotone branches"),
        ("x*exp(x)", "finite limits"),
        ("where(x > 0, x*Phi(x), x*sigmoid(x))", "pieces on one side"),
        ("max(x*sigmoid(x), -0.1)", "flat part"),
        ("softplus(x) - 0.001*tanh(1e5*(x - 0.0013))", "a turn was not found"),  # two, nearer than the scan looks
    ],
)
def test_functions_that_cannot_be_fitted_are_refused_with_the_reason(expr, reason):
    with pytest.raises(InputError, match=reason):
        fit(from_expression(expr), "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("shift", [-1e-6, 0.17, 100.0])
def test_a_shift_of_f_changes_no_cut(shift):
    # f + c has the same f' and the same s: where g has reached its limit must not depend on where 0 is.
    plain, moved = (stretch_of(split(from_expression(expr)), 1) for expr in ("x*erf(x)", f"x*erf(x) + ({shift})"))
    expected = variables(plain, information_floor(get("gelu"), "float32", named("norm")), (1e-3,), exactly=True)[0].high
    got = variables(moved, information_floor(get("gelu"), "float32", named("norm")), (1e-3,), exactly=True)[0].high
    assert got == pytest.approx(expected, rel=1e-3)  # a step of the search


@pytest.mark.slow
def test_a_closed_form_says_when_it_misses_the_rule_and_is_refused_when_it_misses_a_limit():
    assert fit(get("relu"), "bfloat16").rule.text == "closed"
    assert fit(get("tanh"), "bfloat16").rule.text.startswith("closed; misses: RMS within 2%")
    with pytest.raises(InputError, match="no formula found for tanh reaches"):
        fit(get("tanh"), "float32", max_error=6.1e-8)  # 1 - y² in float32 errs by 1.5 units of 2^-24


@pytest.mark.slow
def test_a_weight_that_meets_no_output_is_refused():
    with pytest.raises(InputError, match="custom must have finite outputs in float16"):
        fit(from_expression("x + 1e6"), "float16")
    with pytest.raises(InputError, match="weight must fall on numbers of float16"):
        fit(get("silu"), "float16", weight=named("norm(1e6,1)"))  # beyond float16's largest
    fitted = fit(get("silu"), "float32", engines=("minimax",), weight=named("norm(100,1)"))
    assert fitted.error_floor.rms < 1e-10  # there f' is 1


def test_engines_by_name():
    assert parse_engines("all") == ALL
    assert parse_engines("minimax, template") == DEFAULT
    assert parse_engines("operon,operon") == ("operon",)


@pytest.mark.slow
def test_the_rule_counts_the_floor_and_what_rounding_costs():
    error_floor = fit(get("gelu"), "bfloat16", engines=("minimax",)).error_floor
    rule = rule_for(error_floor)
    # 2 % in RMS: the squares add up, so what a formula may add is (1.02² - 1) of the floor's.
    assert math.sqrt(error_floor.rms**2 + rule.square) == pytest.approx(1.02 * error_floor.rms, rel=1e-12)
    assert rule.linf == pytest.approx(1.10 * error_floor.linf, rel=1e-12)
