"""The price of a formula: exact counts of small expressions, and the table against what a compiler made of it."""

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from sympy import Abs, Piecewise, Rational, exp, sqrt, symbols

from actfit.fitting.activations.functions import Phi, maximum, minimum, sigmoid
from actfit.fitting.invact.engines.papers import published
from actfit.fitting.invact.price import TABLE, Price, price
from actfit.fitting.invact.variable import S, Y, constant
from benchmarks import price as measured

A, B, C, D, E = symbols("a b c d e", real=True)


def made_of(fma=0, division=0, **rows):
    """The price of so many rows of the table."""
    special, other = measured.table_value(rows)
    return Price(fma, other, special, division)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # nothing to do: a constant, an input, a sign
        (Rational(3, 7), made_of()),
        (sqrt(2) * sympy.pi + exp(3), made_of()),
        (Y, made_of()),
        # sums and products
        (Y + 1, made_of(fma=1)),
        (A / (3 * B), made_of(fma=1, division=1)),
        # fused: one product goes with each addition
        (A * Y + B, made_of(fma=1)),
        (B - A * Y, made_of(fma=1)),
        (A * B * C + 3 * D * E, made_of(fma=4)),
        (sqrt(Y) + 1, made_of(fma=1, sqrt=1)),
        # powers, by squaring
        (Y**7, made_of(fma=4)),
        ((Y + 1) ** 3, made_of(fma=3)),
        # roots
        (Y ** Rational(5, 2), made_of(fma=2, sqrt=1)),
        (Y ** Rational(1, 3), made_of(power=1)),
        (Y**A, made_of(power=1)),
        (Y ** (A + 1), made_of(fma=1, power=1)),
        # division
        (1 / Y**2, made_of(fma=1, division=1)),
        ((Y + A) / (Y + B), made_of(fma=2, division=1)),
        # exponentials: of base 2 the unit's own, of another base one product more
        (exp(Y), made_of(exp=1)),
        (A * 2 ** (-exp(Y)), made_of(fma=1, exp2=1, exp=1)),
        (3**Y, made_of(fma=1, exp2=1)),
        # heads
        (sigmoid(Y), made_of(sigmoid=1)),
        (Phi(Y), made_of(other=1)),
        (minimum(maximum(Y - 1, 0), 7), made_of(fma=1, max=1, min=1)),
        (Abs(Y), made_of(abs=1)),
        (Abs(Y + 1), made_of(fma=1)),
        # cases
        (Piecewise((Y, Y > 0), (A * Y, True)), made_of(fma=1, compare=1, select=1)),
        (Piecewise((1, (Y > 0) & (Y < 6)), (0, True)), made_of(compare=2, select=2)),
    ],
    ids=str,
)
def test_counts(expression, expected):
    assert price(expression) == expected


@pytest.mark.parametrize(
    ("expressions", "expected"),
    [
        ((exp(Y) + A, exp(Y) * B), made_of(fma=2, exp=1)),
        (((Y + 1) ** 2 * A, (Y + 1) * B), made_of(fma=4)),
        ((A / Y + B, A / Y + C), made_of(fma=1, division=1)),
        # A product that was fused and is wanted by itself: once more its last multiplication, no other.
        ((A * B + C, A * B), made_of(fma=2)),
        ((A * B + C, A * B + D), made_of(fma=2)),
        ((A + Y**2, Y**2 * B), made_of(fma=3)),
        ((A - Y**2, B + Y**2), made_of(fma=2)),
        ((1 / Y, -1 / Y), made_of(division=1)),
    ],
    ids=str,
)
def test_shared_subexpressions_count_once(expressions, expected):
    assert price(*expressions) == expected


def horner(coefficients, at):
    value = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        value = value * at + coefficient
    return value


@given(st.integers(1, 9), st.integers(1, 9))
def test_polynomials_and_rationals_of_horner(n, m):
    """n fma a polynomial of degree n, with numbers and with names for coefficients; n + m and a division a rational."""
    names = symbols("p0:10", real=True)
    above = horner(names[: n + 1], S)
    assert price(above) == made_of(fma=n)
    assert price(horner([Rational(k, 7) for k in range(2, n + 3)], S)) == made_of(fma=n)
    assert price(S * above) == made_of(fma=n + 1)
    below = horner([sympy.Integer(1), *(constant(k) for k in range(m))], S)
    assert price(above / below) == made_of(fma=n + m, division=1)
    assert price(above, below) == made_of(fma=n + m)


def test_paper_formulas():
    """Counted by hand from equations 5 to 8; s costs one sum, one clamp and one root where it is not in the formula."""
    s = {"fma": 1, "max": 1, "sqrt": 1}
    left, right = published("gelu")
    assert left.price == made_of(fma=11, sqrt=2)
    assert price(right.form.expression) == made_of(fma=8, exp=1)
    assert right.price == made_of(fma=9, max=1, sqrt=1, exp=1)
    left, right = published("silu")
    assert price(left.form.expression) == made_of(fma=8)
    assert left.price == made_of(**{**s, "fma": 9})
    assert right.price == made_of(fma=11, max=1, sqrt=1, exp=1)
    for candidate, row in [(published("gelu")[0], "gelu left"), (published("silu")[1], "silu right")]:
        assert candidate.price.total == sum(measured.table_value(measured.BODIES[row][1]))


# The stored measurement.

# Rows where the compiler does better than the table says: predication does the work of one select; and on sm_90
# a sum takes the absolute value of what was loaded as a modifier.
SPARED = {("three cases", 80), ("three cases", 90), ("abs in a sum", 90)}


@pytest.mark.parametrize("capability", measured.CAPABILITIES)
def test_table_agrees_with_the_measurement(capability):
    """Exactly in instructions of the special-function unit; in others to 1/4, which a constant kept in a register for
    several elements can cost; one less in the rows named above."""
    counts = measured.load(capability)
    assert list(counts) == list(measured.BODIES)
    for what, (_, parts) in measured.BODIES.items():
        special, other = measured.table_value(parts)
        spared = (what, capability) in SPARED
        assert counts[what][0] == special, what
        assert abs(counts[what][1] - (other - spared)) <= 0.25, what


def test_every_row_of_the_table_is_measured():
    assert {kind for _, parts in measured.BODIES.values() for kind in parts} == set(TABLE)
