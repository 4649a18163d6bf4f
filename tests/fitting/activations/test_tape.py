"""One tape, four arithmetics: they agree, balls hold what they must, and stable functions have their definitions."""

import flint
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actfit.fitting.activations import calculus, from_expression, get, names, oracle
from actfit.fitting.activations.functions import DEFINITIONS, STABLE_FUNCTIONS, erfc, x
from actfit.fitting.activations.grammar import parse
from actfit.fitting.activations.tape import Tape
from tests.fitting.agreement import EPS, assert_agree

USERS = {
    "swish": ("x*sigmoid(b*x)", {"b": 1.7}),
    "mish": ("x*tanh(log(1+exp(x)))", {}),
    "gelu": ("x*(1 + erf(x/sqrt(2)))/2", {}),
    "snake": ("x + sin(a*x)**2/a", {"a": 0.7}),
    "log": ("log(1 + x**2)", {}),
    "log1p": ("x*log1p(exp(-x))", {}),
    "sqrt": ("(x + sqrt(x**2 + 4))/2", {}),
    "power": ("x*(1 + x**2)**(-0.3)", {}),
    "atan": ("x*atan(2*x)", {}),
    "atan of exp": ("atan(exp(x))", {}),
    "softsign": ("x*softsign(x)", {}),
    "abs": ("abs(x**2 - 2)", {}),
    "clip": ("min(max(x, -1.5), x**2)", {}),
    "hyperbolic": ("cosh(x/2) - sinh(x/3)", {}),
    "tails": ("phi(x) + sech(x)*erfc(x) + expm1(-x**2)", {}),
    "tan": ("tan(x/7)", {}),
    "nested": ("relu(relu(x + 1) - 1) + where(x < -1 or x > 2, cos(x), 0)", {}),
}
ACTIVATIONS = {
    **{name: get(name) for name in names()},
    **{f"user {name}": from_expression(expr, params=params) for name, (expr, params) in USERS.items()},
}
every = pytest.mark.parametrize("name", ACTIVATIONS)
SMOOTH = [name for name, activation in ACTIVATIONS.items() if activation.step_values is None]

inside = st.floats(-9, 9)


def tapes(activation):
    return Tape(activation.f_expression), Tape(activation.d1_expression)


def holds(ball, value):
    """Whether `value`, an mpf good to far more digits than the ball, lies in it, with 1e-40 to spare for both."""
    slack = mpmath.mpf(10) ** -40 * (1 + abs(value))
    middle, radius = (mpmath.mpf(part.mid().str(60, radius=False)) for part in (ball, ball.rad()))
    return abs(value - middle) <= radius + slack


@every
@settings(max_examples=20)
@given(at=inside)
def test_three_arithmetics_agree_at_points(name, at):
    for tape in tapes(ACTIVATIONS[name]):
        with mpmath.workdps(70), flint.ctx.workprec(230):
            exact = tape.mp(mpmath.mpf(at))
            ball = tape.arb(flint.arb(at))
            assert ball.rad() < 1e-40 * (1 + abs(ball))
            assert holds(ball, exact)
        # Where a factor cancels or a slope is steep, numpy may lose what x times it is worth.
        assert_agree([at], [tape.numpy(np.array(at))], [float(exact)], rtol=32 * EPS, atol=64 * EPS)


def interval(data, lo, hi):
    """A ball inside (lo, hi), or as much of it as lies within ±9, and a point in the ball."""
    ends = st.floats(max(lo, -9.0), min(hi, 9.0))
    a, b = sorted((data.draw(ends), data.draw(ends)))
    middle = flint.arb(a) / 2 + flint.arb(b) / 2
    ball = flint.arb(middle, (flint.arb(b) - flint.arb(a)) / 2)
    return ball, mpmath.mpf(data.draw(st.floats(a, b)))


@every
@settings(max_examples=30)
@given(data=st.data())
def test_a_ball_holds_every_value_over_an_interval(name, data):
    piece = data.draw(st.sampled_from(ACTIVATIONS[name].pieces))
    with mpmath.workdps(60), flint.ctx.workprec(200):
        ball, point = interval(data, piece.lo, piece.hi)
        for tape in (piece.f, piece.d1, piece.d2):
            over = tape.arb(ball)
            if over.is_finite():
                assert holds(over, tape.mp(point))


@pytest.mark.parametrize("name", [*names(), "user sqrt", "user log", "user atan"])
def test_balls_over_moderate_intervals_are_finite(name):
    # An infinite ball holds everything: the test above would pass with nothing else. Also at 0, where powers are hard.
    for piece in ACTIVATIONS[name].pieces:
        with flint.ctx.workprec(200):
            for middle in (-1.0, 0.0, 0.7, 5.0):
                if piece.lo <= middle - 0.25 and middle + 0.25 <= piece.hi:
                    for tape in (piece.f, piece.d1, piece.d2):
                        over = tape.arb(flint.arb(middle, 0.25))
                        assert over.is_finite()
                        assert over.rad() < 8


def pinched(piece):
    lo, hi = max(piece.lo, -3.0), min(piece.hi, 3.0)
    return (lo, hi) if lo < hi else None


@pytest.mark.parametrize("name", SMOOTH)
def test_integral_of_the_squared_derivative_by_acb_equals_quadrature(name):
    for piece in filter(pinched, ACTIVATIONS[name].pieces):
        lo, hi = pinched(piece)
        with flint.ctx.workprec(200), mpmath.workdps(40):
            # `analytic` tells where flint must know of branch cuts; the tape answers "not finite" across them always.
            ball = flint.acb.integral(lambda z, _, piece=piece: piece.d1.acb(z) ** 2, lo, hi)
            middles = [lo + (hi - lo) * k / 8 for k in range(9)]
            want = mpmath.quad(lambda t, piece=piece: piece.d1.mp(t) ** 2, middles)
            assert ball.imag.contains(0)
            assert ball.real.rad() < 1e-30
            assert abs(mpmath.mpf(ball.real.mid().str(50, radius=False)) - want) < mpmath.mpf(10) ** -25 * (1 + want)


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("log(x)", (-2, 0)),
        ("sqrt(x)", (-2, 0)),
        ("x**0.3", (-2, 0)),
        ("log1p(x)", (-3, 0)),
        ("softplus(x)", (0, np.pi)),
        ("atan(x)", (0, 2)),
    ],
)
def test_nothing_finite_across_a_branch_cut(text, cut):
    tape = Tape(parse(text))
    across = flint.acb(flint.arb(cut[0], 0.1), flint.arb(cut[1], 0.1))
    beside = flint.acb(flint.arb(cut[0] + 1, 0.1), flint.arb(cut[1] / 4, 0.01))
    assert not tape.acb(across).is_finite()
    if cut[0] == 0:
        assert tape.acb(beside).is_finite()


@pytest.mark.parametrize("name", sorted(STABLE_FUNCTIONS))
@settings(max_examples=20)
@given(at=st.floats(-6, 6))
def test_derivatives_of_stable_functions(name, at):
    at = abs(at) if name == "log1p" else at
    function = STABLE_FUNCTIONS[name](x)
    with mpmath.workdps(60):
        assert abs(Tape(function).mp(mpmath.mpf(at)) - DEFINITIONS[name](mpmath.mpf(at))) == 0
        slope = mpmath.diff(DEFINITIONS[name], at, h=mpmath.mpf(10) ** -25) if at else None
        derivative = Tape(function.diff(x)).mp(mpmath.mpf(at))
    if slope is not None and (name != "softsign" or abs(at) > 1e-20):
        assert abs(derivative - slope) < mpmath.mpf(10) ** -20 * (1 + abs(slope))


# The formula of each stable function by other functions: a check of DEFINITIONS.
SPELLED = {
    "sigmoid": "1/(1 + exp(-x))",
    "softplus": "log(1 + exp(x))",
    "tanh": "sinh(x)/cosh(x)",
    "sech": "2/(exp(x) + exp(-x))",
    "Phi": "(1 + erf(x/sqrt(2)))/2",
    "phi": "exp(-x**2/2)/sqrt(2*pi)",
    "softsign": "where(x > 0, x/(1 + x), x/(1 - x))",
    "expm1": "exp(x) - 1",
    "log1p": "log(1 + x)",
}


@pytest.mark.parametrize("name", sorted(STABLE_FUNCTIONS))
@pytest.mark.parametrize("at", [-4.3, -0.9, -1e-3, 0.0, 0.4, 3.7])
def test_each_stable_function_is_its_formula_in_every_arithmetic(name, at):
    at = abs(at) if name == "log1p" else at
    function, spelled = Tape(STABLE_FUNCTIONS[name](x)), Tape(parse(SPELLED[name]))
    with mpmath.workdps(60), flint.ctx.workprec(200):
        want = spelled.mp(mpmath.mpf(at))
        assert abs(function.mp(mpmath.mpf(at)) - want) < mpmath.mpf(10) ** -50
        assert holds(function.arb(flint.arb(at)), want)
        if name != "softsign":  # of smooth pieces only
            assert holds(function.acb(flint.acb(at)).real, want)
    # exp(-x²/2) at 4.3 has x² + 1 times the rounding of its argument.
    assert_agree([at], [function.numpy(np.array(at))], [float(want)], rtol=16 * EPS)
    assert_agree([at], [float(STABLE_FUNCTIONS[name](parse("a", {"a": at})).evalf(30))], [float(want)], rtol=EPS)


@pytest.mark.parametrize("text", ["x**2", "x**3", "x**4", "x**5", "x**11", "x**1000"])
def test_powers_of_balls_that_hold_zero(text):
    # flint's own ball**2 is NaN there.
    with flint.ctx.workprec(100):
        over = Tape(parse(text)).arb(flint.arb(0.5, 1.5))
        assert over.is_finite()
        for value in (-0.999, 0.0, 0.5, 1.999):
            assert over.contains(flint.arb(value) ** int(text[3:]))
        assert not Tape(parse(f"1/{text}")).arb(flint.arb(0.5, 1.5)).is_finite()


@pytest.mark.parametrize("text", ["log(x)", "sqrt(x)", "x**0.3", "log1p(x - 1)", "1/x", "x**-2", "log(x)*log(x)"])
def test_not_a_number_where_there_is_no_real_value(text):
    tape = Tape(parse(text))
    at = mpmath.mpf(0) if text in ("1/x", "x**-2") else mpmath.mpf(-1)
    value = tape.mp(at)
    assert isinstance(value, mpmath.mpf)
    assert mpmath.isnan(value)
    assert not tape.arb(flint.arb(float(at))).is_finite()
    assert np.isnan(calculus.values(tape, np.array([float(at)]))).all()


def test_a_branch_that_is_not_chosen_does_no_harm():
    activation = from_expression("where(x > 0, 1/x + log(x), 2)")
    assert float(oracle.f(activation, 0)) == 2.0
    assert float(oracle.f(activation, -1)) == 2.0
    assert activation.f([-1.0, 0.0, 1.0]).tolist() == [2, 2, 1]


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "tanh", "sech", "Phi", "phi", "softsign", "erf", "erfc"])
@pytest.mark.parametrize("at", [1e20, 1e160, 1.7e308, -1e20, -1e160, -1.7e308])
def test_far_out_every_arithmetic_is_finite(name, at):
    expression = parse(f"{name}(x)")
    for tape in (Tape(expression), Tape(expression.diff(x))):
        with flint.ctx.workprec(200), mpmath.workdps(50):
            ball, exact = tape.arb(flint.arb(at)), tape.mp(mpmath.mpf(at))
        assert ball.is_finite()
        assert_agree([at, at], [float(ball), *calculus.values(tape, np.array([at]))], [float(exact)] * 2, rtol=2 * EPS)


def test_erfc_beyond_mpmath():
    with mpmath.workdps(90):
        for at in ("1e25", "3e25", "1e40"):
            u = mpmath.mpf(at)
            assert abs(erfc(u) / mpmath.erfc(u) - 1) < mpmath.mpf(10) ** -75
        assert erfc(mpmath.mpf(10) ** 200) > 0


def test_overflow_on_the_way_is_seen():
    # exp(x)·(exp(x) + exp(-x))**-2·exp(x) is 1, but 0 in float64 from x = 355 on and 0·inf = NaN from 710.
    tape = Tape(parse("exp(x)*exp(x)*(exp(x) + exp(-x))**(-2)*where(x > 0, 1, 2)"))
    points = np.array([-400.0, 1.0, 300.0, 385.0, 500.0, 720.0, 1e4])
    with mpmath.workdps(50):
        want = np.array([float(tape.mp(mpmath.mpf(point))) for point in points])
    assert want[2:].tolist() == [1.0] * 5
    assert_agree(points, calculus.values(tape, points), want, rtol=2000 * EPS)  # exp(2x) in 2x ulps
    assert tape.numpy_checked(points)[1].tolist() == [True, False, False, True, True, True, True]


def test_roots_are_good_to_fifty_digits_and_zero_is_zero():
    with flint.ctx.workprec(200):
        (root,) = calculus.sign_changes(Tape(parse("x**3 - 2")), -5.0, 5.0)
        assert abs(root - flint.arb(2) ** (flint.arb(1) / 3)) < 1e-50
    for text in ("sin(x)*exp(x)", "tanh(x) - x**5", "x**3"):
        roots = calculus.sign_changes(Tape(parse(text)), -0.5, 0.7)
        assert [float(root) for root in roots] == [0.0]
    assert calculus.sign_changes(Tape(parse("x**2")), -1.0, 1.0) == []
    assert calculus.sign_changes(Tape(parse("x")), 1.0, 1.0) == []
    near = calculus.sign_changes(Tape(parse("x - 1e-7")), 0.0, 1.0)
    assert [float(root) for root in near] == [1e-7]


@pytest.mark.parametrize(("text", "at"), [("(relu(x + 1)*x)**softsign(Phi(1e-300))", -2), ("1e200*tanh(1e200*x)", 0)])
def test_non_finite_numbers_of_a_derivative(text, at):
    """0**c, whose derivative has a NaN in it, and 1e400: not finite in any arithmetic, and no exception."""
    (piece, *_) = (piece for piece in from_expression(text).pieces if piece.lo < at <= piece.hi or at < piece.hi)
    derivative = piece.d1
    assert not np.isfinite(derivative.numpy(np.array([float(at)]))).any()
    assert not mpmath.isfinite(derivative.mp(mpmath.mpf(at))) or derivative.mp(mpmath.mpf(at)) > 1e308
    assert not derivative.arb(flint.arb(at)).is_finite() or derivative.arb(flint.arb(at)) > 1e308
