"""Forms from formulas, and halls of fame as PySR leaves them: read, never run."""

import os
from itertools import permutations
from pathlib import Path

import mpmath
import numpy as np
import pytest
import sympy
from hypothesis import example, given
from hypothesis import strategies as st
from sympy import Abs, Rational, exp, sqrt

from actfit.fitting.activations.tape import Tape
from actfit.fitting.errors import InputError
from actfit.fitting.invact.formula import Form, derivative_by
from actfit.fitting.invact.symbolic import equations, evaluate
from actfit.fitting.invact.symbolic.equations import to_form
from actfit.fitting.invact.variable import S, Y
from tests.fitting.invact.symbolic.forms import C, form


@pytest.mark.parametrize(
    ("text", "expression", "values"),
    [
        ("s*(1.5 - 2.25*s)/(1 + 0.4*s)", S * (C[1] + C[2] * S) / (1 + C[0] * S), (0.4, 1.5, -2.25)),
        ("3*s*(1.5 - 2.25*s)/(2 + 0.8*s)", S * (C[1] + C[2] * S) / (1 + C[0] * S), (0.4, 2.25, -3.375)),
        ("2*(3*(4*y + 5))", C[0] + C[1] * Y, (30, 24)),
        ("s**2.0 + s**3 + 1/s**2", S**2 + S**3 + S**-2, ()),
        ("s**1.3", S ** C[0], (1.3,)),
        ("0.75", C[0], (0.75,)),
        ("0.5*(4*y + 2*s)**2", C[0] * (C[1] * S + Y) ** 2, (8, 0.5)),
        ("3*sqrt(4*y)", C[0] * sqrt(Y), (6,)),
        ("2*exp(y + 0) - exp(-s)", C[0] * exp(Y) - exp(-S), (2,)),
        ("(2*y + 3)*(4*s + 8)", (C[0] * Y + 1) * (C[1] * S + C[2]), (2 / 3, 24, 12)),
    ],
)
def test_numbers_become_constants(text, expression, values):
    parsed = form(text)
    assert len(parsed.values) == len(parsed.expression.free_symbols - {Y, S})
    if values is not None:
        assert sorted(parsed.values) == sorted(values)
    renamed = [dict(zip(parsed.constants, order, strict=True)) for order in orders(parsed.constants)]
    assert any(parsed.expression.xreplace(names) == expression for names in renamed)


def orders(constants):
    return [[C[i] for i in order] for order in permutations(range(len(constants)))]


def test_a_shift_in_an_exponential_is_a_factor():
    parsed = form("2*exp(1.5*y + 0.25)")
    assert parsed.expression in (C[0] * exp(C[1] * Y), C[1] * exp(C[0] * Y))
    assert sorted(parsed.values) == pytest.approx([1.5, 2 * float(np.exp(0.25))], rel=1e-15)


def test_a_part_that_occurs_twice_keeps_its_constants():
    assert len(form("exp(0.3*y + s) + 1/(1 + exp(0.3*y + s))").values) == 1


@pytest.mark.parametrize("text", ["log(s - s - 1)", "sqrt(0 - 2)*y"])
def test_numbers_that_are_not_real_are_refused(text):
    with pytest.raises(InputError, match="real"):
        form(text)


def test_towers_of_exponentials_take_no_time():
    with pytest.raises(InputError, match=r"1\.8e308"):
        to_form(Y * exp(exp(exp(exp(Rational(9), evaluate=False)))), "test")
    assert to_form(S + Y * exp(-exp(exp(Rational(4)))), "test") == Form(S, (), "test")


numbers = st.floats(-9, 9, allow_subnormal=False).filter(lambda v: abs(v) > 1e-3).map(lambda v: Rational(float(v)))
leaves = st.one_of(st.sampled_from([Y, S]), numbers)
expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(lambda a, b: a / (b * b + 1), inner, inner),
        st.builds(lambda a: a**2, inner),
        st.builds(lambda a: sqrt(a * a + 2), inner),
        st.builds(lambda a, k: exp(k - a * a), inner, numbers),
        st.builds(Abs, inner),
    ),
    max_leaves=8,
)


@given(expressions, st.floats(0.01, 3), st.floats(0.01, 3))
@example(Abs(Y + sqrt(Y**2 + 2)), 1.0, 1.0)
def test_a_form_is_the_same_function(expression, y, s):
    """Up to the rounding of its constants, half an ulp each, and their effect: the derivatives by them."""
    converted = to_form(expression, "test")
    with mpmath.workdps(40):
        expected = Tape(expression, Y, S).mp(mpmath.mpf(y), mpmath.mpf(s))
        at = (mpmath.mpf(y), mpmath.mpf(s), *map(mpmath.mpf, converted.values))
        got = Tape(converted.expression, Y, S, *converted.constants).mp(*at)
        derivatives = [
            Tape(derivative_by(converted.expression, c), Y, S, *converted.constants).mp(*at)
            for c in converted.constants
        ]
        allowed = (
            sum(abs(derivative * value) for derivative, value in zip(derivatives, converted.values, strict=True))
            * 2**-53
        )
        assert abs(got - expected) <= 1.01 * allowed + 1e-30 * (1 + abs(expected))


@given(expressions)
def test_no_number_is_left_that_is_not_structure(expression):
    converted = to_form(expression, "test")
    assert len(converted.values) == len(converted.expression.free_symbols - {Y, S})
    powers = {p.exp for p in converted.expression.atoms(sympy.Pow)}
    assert all(n in powers or abs(n) == 1 for n in converted.expression.atoms(sympy.Rational))


EQUATIONS = """Complexity,Loss,Equation
1,0.5,"0.25"
5,0.001,"square(x1) + 1.5f-3"
9,1e-4,"inv(x0 + 2.0) - (x1 ^ 3 / cube(1.5e0 * x1))"
3,0.01,"neg(y)"
11,1e-5,"max(s, 0.1) * sqrt(abs(x0)) ^ 2.0"
"""


def fame(folder: Path, text: str = EQUATIONS, name: str = equations.NAME) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, "utf-8")
    return folder / name


def test_a_hall_of_fame_is_read(tmp_path):
    constant_, minus, square, quotient, larger = equations.read_hall_of_fame(fame(tmp_path))
    assert constant_ == Form(C[0], (0.25,), "pysr")
    assert minus == Form(-Y, (), "pysr")
    assert square == Form(S**2 + C[0], (0.0015,), "pysr")
    y, s = np.array([0.3, -0.7]), np.array([0.2, 1.4])
    assert evaluate(quotient, y, s) == pytest.approx(1 / (y + 2) - 1.5**-3, rel=1e-15)
    assert evaluate(larger, y, s) == pytest.approx(np.maximum(s, 0.1) * np.abs(y), rel=1e-15)


def test_the_newest_run_of_a_folder_is_read(tmp_path):
    for age, run in enumerate(("new", "old")):
        file = fame(tmp_path / "outputs" / run, f"Complexity,Loss,Equation\n1,1,{age}.5 * x0\n")
        os.utime(file, (1e9 - age, 1e9 - age))
    fame(tmp_path / "outputs" / "new", name="hall_of_fame.csv.bak")
    for folder in (tmp_path, tmp_path / "outputs", tmp_path / "outputs" / "new"):
        assert [formula.values for formula in equations.read_hall_of_fame(folder)] == [(0.5,)]
    (tmp_path / "outputs" / "new" / "hall_of_fame.csv").unlink()
    assert len(equations.read_hall_of_fame(tmp_path / "outputs" / "new")) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "row 1: columns must include Complexity, Loss, Equation, got 'a, b'"),
        ("Complexity,Loss,Equation\n", "at least one row"),
        ("Complexity,Loss,Equation\n1,0.5,x0\n2,much,x0\n", "row 3 column Loss: must be a number, got 'much'"),
        ("Complexity,Loss,Equation\n1,0.5\n", "row 2: must have as many fields"),
        ('Complexity,Loss,Equation\n1,0.5,"x0\n', "must be CSV"),
        ("Complexity,Loss,Equation\n1,0.5,x2\n", "row 2 column Equation: .*unknown name 'x2'"),
        ("Complexity,Loss,Equation\n1,0.5,inv(0)\n", "row 2 column Equation: .*not a real number"),
        (f"Complexity,Loss,Equation\n1,0.5,{'x0+' * 1000}1\n", "row 2 column Equation: .*characters"),
    ],
)
def test_a_bad_hall_of_fame_is_one_line(tmp_path, text, message):
    file = fame(tmp_path, text)
    with pytest.raises(InputError, match=message) as caught:
        equations.read_hall_of_fame(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hall_of_fame_that_is_not_text_or_not_there(tmp_path):
    (tmp_path / "hall_of_fame.csv").write_bytes(b"Complexity,Loss,Equation\n1,1,\xff\n")
    with pytest.raises(InputError, match="UTF-8"):
        equations.read_hall_of_fame(tmp_path)
    with pytest.raises(InputError, match=r"--import-pysr must name .*absent"):
        equations.read_hall_of_fame(tmp_path / "absent")


@pytest.mark.parametrize(
    "equation",
    [*("__import__('os').getpid()", "__import__('pathlib').Path('{}').touch()", "x0.__class__", "(" * 5000)],
    ids=lambda equation: equation[:30],
)
def test_an_equation_is_never_run(tmp_path, monkeypatch, equation):
    mark, ran = tmp_path / "mark", []
    monkeypatch.setattr(os, "getpid", lambda: ran.append(1))
    file = fame(tmp_path, f'Complexity,Loss,Equation\n1,0.5,"{equation.format(mark)}"\n')
    with pytest.raises(InputError, match="row 2 column Equation"):
        equations.read_hall_of_fame(file)
    assert not ran
    assert not mark.exists()
