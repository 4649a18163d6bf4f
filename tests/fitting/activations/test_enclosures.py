"""Series and hulls over balls: they hold what they must, and are not finite where nothing is known."""

import flint
import mpmath
import pytest
from sympy import Abs, Function, Gt, Integer, Piecewise, Rational, sqrt, true

from actfit.fitting.activations.enclosures import HULL, ROOTS, SERIES
from actfit.fitting.activations.functions import STABLE_FUNCTIONS, maximum, minimum, x
from actfit.fitting.activations.tape import Tape

FUNCTIONS = {
    **{name: head(x) for name, head in STABLE_FUNCTIONS.items()},
    **{name: Function(name)(x) for name in ("exp", "log", "sin", "cos", "tan", "sinh", "cosh", "atan", "erf", "erfc")},
    "root": x ** Rational(1, 3),
    "powers": (x - 3) ** 5 / (x + 7) ** 2 + 2 ** (-x) + Abs(x - 9),
    "extremes": maximum(x, x**2 - 90) + minimum(x, 1 / (x + 5)),
}
ONLY_POSITIVE = {"log", "root"}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("middle", "radius"), [(0.75, 0.25), (-0.5, 1e-3), (3.0, 0.5), (-6.0, 0.01), (0.25, 0.0)])
def test_coefficients_over_a_ball_hold_those_at_its_points(name, middle, radius):
    if name in ONLY_POSITIVE | {"log1p"} and middle < 0:
        middle = middle + 7
    tape = Tape(FUNCTIONS[name])
    with flint.ctx.workprec(128):
        series = tape.run(SERIES, flint.arb_series([flint.arb(middle, radius), 1], 6))
        for place in (-1.0, -0.3, 0.0, 1.0):
            with mpmath.workdps(60):
                exact = mpmath.taylor(tape.mp, mpmath.mpf(middle) + place * mpmath.mpf(radius), 5)
                for k, coefficient in enumerate(exact):
                    ball = series[k]
                    assert ball.is_finite()
                    assert abs(ball - flint.arb(mpmath.nstr(coefficient, 50))).lower() <= 1e-18 * (
                        1 + abs(float(coefficient))
                    )


@pytest.mark.parametrize("name", ["log", "root", "softsign", "log1p"])
def test_no_coefficients_where_a_function_is_not_analytic(name):
    at = -1.0 if name == "log1p" else 0.0
    series = Tape(FUNCTIONS[name]).run(SERIES, flint.arb_series([flint.arb(at, 0.1), 1], 4))
    assert not flint.arb(series[0] if isinstance(series, flint.arb_series) else series).is_finite()


def test_undecided_conditions():
    step = Tape(Piecewise((Integer(2), Gt(x, 1)), (Integer(5), true)))
    across, above, below = flint.arb(1, 0.5), flint.arb(2, 0.5), flint.arb(0, 0.5)
    assert not step.run(SERIES, across).is_finite()
    assert (step.run(SERIES, above), step.run(SERIES, below)) == (2, 5)
    either = step.run(HULL, across)
    assert either.contains(2)
    assert either.contains(5)
    assert step.run(HULL, above) == 2
    assert not Tape(sqrt(x)).run(HULL, across - 1).is_finite()
    clipped = Tape(sqrt(x)).run(ROOTS, across - 1)
    assert clipped.contains(0)
    assert clipped.contains(0.7)
    assert clipped.upper() < 0.71
    assert not Tape(sqrt(x)).run(ROOTS, flint.arb(-2, 1)).is_finite()
