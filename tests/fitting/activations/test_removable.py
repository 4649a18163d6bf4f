"""Quotients with a removable singularity, such as sin(x)/x: in every arithmetic, and as fits."""

from functools import cache

import flint
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actfit.fitting.activations import calculus, from_expression, oracle
from actfit.fitting.activations.enclosures import SERIES
from actfit.fitting.activations.functions import removable
from actfit.fitting.activations.grammar import parse
from actfit.fitting.activations.singularities import settled, singular
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.solve import fit

# expression -> (the point, f there, f' there, f'' there), by hand from the power series
QUOTIENTS = {
    "sin(x)/x": (0, 1, 0, "-1/3"),
    "(1 - cos(x))/x": (0, 0, "1/2", 0),
    "(exp(x) - 1)/x": (0, 1, "1/2", "1/3"),
    "tanh(x)/x": (0, 1, 0, "-2/3"),
    "x/tanh(x)": (0, 1, 0, "2/3"),
    "x/sinh(x)": (0, 1, 0, "-1/3"),
    "1/tanh(x) - 1/x": (0, 0, "1/3", 0),
    "(exp(x) - 1 - x)/x**2": (0, "1/2", "1/6", "1/12"),
    "sin(x)**2/x**2": (0, 1, 0, "-2/3"),
    "sin(2*x - 2)/(x - 1)": (1, 2, 0, "-8/3"),
    "x/(exp(x) - 1)": (0, 1, "-1/2", "1/6"),
}
every = pytest.mark.parametrize("expression", QUOTIENTS)
known = cache(from_expression)  # cached, so that examples of a test share derived properties


def plainly(expression, at):
    """The value of the text as written, at 300 digits, where no divisor is 0."""
    with mpmath.workdps(300):
        names = {name: getattr(mpmath, name) for name in ("sin", "cos", "exp", "tanh", "sinh")}
        return eval(expression, {"__builtins__": {}}, {**names, "x": mpmath.mpf(at)})  # of our own texts above


@every
def test_the_values_at_the_point_are_the_limits(expression):
    activation = from_expression(expression)
    point, *values = QUOTIENTS[expression]
    (piece,) = activation.pieces
    for tape, value in zip((piece.f, piece.d1, piece.d2), values, strict=True):
        exact = float(parse(str(value)))
        assert float(tape.numpy(np.array(float(point)))) == pytest.approx(exact, rel=2.0**-52, abs=0)
        assert float(tape.numpy32(np.float32(point))) == np.float32(exact)
        with flint.ctx.workprec(200):
            for ball in (tape.arb(flint.arb(point)), tape.acb(flint.acb(point)).real):
                over, _, under = str(value).partition("/")
                assert abs(ball - flint.arb(int(over)) / int(under or 1)) < 1e-50
    assert abs(oracle.f(activation, point) - mpmath.mpf(parse(str(values[0])).p) / parse(str(values[0])).q) < 1e-49


@every
@pytest.mark.parametrize("offset", [1e-300, 1e-40, -1e-20, 1e-8, -1e-3, 0.05, 0.24, 0.26, -0.49, 0.51, 1.5, -7.0])
def test_values_next_to_the_point(expression, offset):
    activation = known(expression)
    at = float(QUOTIENTS[expression][0] + offset)
    if at == QUOTIENTS[expression][0]:
        pytest.skip("rounded to the point itself")
    exact = plainly(expression, at)
    if abs(mpmath.mag(offset)) > 300:  # 300 digits are not enough for two of them
        exact = mpmath.mpf(parse(str(QUOTIENTS[expression][1])).p) / parse(str(QUOTIENTS[expression][1])).q
    with mpmath.workdps(60):
        assert abs(oracle.f(activation, at) - exact) <= 1e-48 * abs(exact) + mpmath.mpf(10) ** -295
    # Beyond the polynomial, at 0.26, x**-2 magnifies the rounding of the parts 16 times at most.
    assert activation.f(at) == pytest.approx(float(exact), rel=64 * 2.0**-53, abs=1e-290)
    with flint.ctx.workprec(200):
        assert (activation.pieces[0].f.arb(flint.arb(at)) - flint.arb(mpmath.nstr(exact, 70))).abs_lower() < 1e-50


@pytest.mark.slow
@every
@settings(max_examples=20)
@given(data=st.data())
def test_balls_and_series_hold_what_they_must(expression, data):
    (piece,) = known(expression).pieces
    point = QUOTIENTS[expression][0]
    radius = data.draw(st.sampled_from([1e-30, 1e-9, 1e-3, 0.1, 0.4]))
    middle = point + data.draw(st.floats(-1, 1)) * radius
    inside = middle + data.draw(st.floats(-1, 1)) * radius * 0.999
    with flint.ctx.workprec(300):
        ball = flint.arb(middle, radius)
        before, flint.ctx.cap = flint.ctx.cap, 3
        try:
            series = piece.f.run(SERIES, flint.arb_series([ball, 1], 3))
        finally:
            flint.ctx.cap = before
        for k, tape in enumerate((piece.f, piece.d1, piece.d2)):
            exact = tape.arb(flint.arb(inside))
            assert tape.arb(ball).is_finite()
            assert tape.arb(ball).overlaps(exact)
            assert tape.acb(flint.acb(ball, flint.arb(0, radius / 9))).real.overlaps(exact)
            assert series[k].is_finite() or radius > 0.1  # tanh has poles, and its series over a wide ball no bounds
            assert not series[k].is_finite() or (series[k] * (2 if k == 2 else 1)).overlaps(exact)


POLES = ["1/x", "cos(x)/x", "sqrt(x)/x", "abs(x)/x", "(sin(x) + 1e-300)/x", "tanh(x)/x**2"]


@pytest.mark.parametrize("expression", POLES)
def test_what_has_a_pole_or_a_jump_is_left_alone(expression):
    assert not settled(parse(expression)).has(removable)


def test_a_quotient_of_polynomials_is_one_polynomial():
    assert settled(parse("(x**2 - 1)/(x - 1)")) == parse("x + 1")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1/x", "finite on the domain, and at x = 0 a divisor of f is 0: leave it out by --domain 0.03 3"),
        ("tanh(x)/(x - 2)**2", "at x = 2 a divisor of f is 0: leave it out by --domain -3 1.95"),
        ("log(x)", "must be finite on the domain, got -inf near x = 0; try --domain 0.03 3"),
        ("x**x", "must be finite on the domain, got nan near x = -3; try --domain"),
    ],
)
def test_the_message_names_the_true_place(expression, message):
    with pytest.raises(InputError) as caught:
        fit(from_expression(expression), 1, domain=(-3, 3))
    assert str(caught.value).endswith(message)
    assert singular(parse("x*sigmoid(x)")) == ()


@pytest.mark.slow
def test_they_are_fitted_with_a_certificate():
    activation = from_expression("x/(exp(x) - 1)")
    table = fit(activation, 2, domain=(-4, 4))
    assert table.error.gap < 1e-3
    grid = np.linspace(-4, 4, 4001)  # another integral of the same square
    values = calculus.values(activation.pieces[0].d1, grid)
    levels = np.asarray(table.steps.levels)[np.asarray(table.steps.codes)]
    steps = levels[np.searchsorted(table.steps.borders, grid, side="left")]
    # The trapezoidal rule on 4000 cells: at each of the few jumps it is off by a cell's share of the largest square.
    assert np.trapezoid((values - steps) ** 2, grid) == pytest.approx(table.error.l2_squared, rel=0.02)
