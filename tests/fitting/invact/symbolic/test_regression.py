"""The engines of symbolic regression: reading trees and files, forms from formulas, what is kept, and the searches."""

import ast
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from itertools import pairwise, permutations
from pathlib import Path

import mpmath
import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sympy import Abs, Rational, exp, sqrt

from fitting.activations.grammar import parse_formula
from fitting.activations.tape import Tape
from fitting.errors import InputError
from fitting.invact.formula import Form
from fitting.invact.symbolic import equations, operon, pysr
from fitting.invact.symbolic.equations import to_form
from fitting.invact.symbolic.regression import Data, child, error, evaluate, front, pruned, size, sound_at
from fitting.invact.variable import S, Y, constant

C = [constant(i) for i in range(9)]
Array = NDArray[np.float64]
has_operon = pytest.mark.skipif(find_spec("pyoperon") is None, reason="pyoperon is not installed")
has_pysr = pytest.mark.skipif(find_spec("pysr") is None, reason="pysr is not installed")


def form(text: str) -> Form:
    return to_form(parse_formula(text, (Y, S)), "test")


def data(count: int = 300) -> Data:
    """s(1.5 - 2.25 s)/(1 + 0.4 s), where y = s² - 0.17."""
    s = np.linspace(0, 0.6, count)
    return Data(s**2 - 0.17, s, s * (1.5 - 2.25 * s) / (1 + 0.4 * s), np.full(count, 1 / count))


EXTREME = 1e38  # the y that stands for infinity: float32 ends at 3.4e38


def sound(form: Form, y_range: tuple[float, float], s_range: tuple[float, float], order: int = 2) -> bool:
    """Whether the form varies and is finite, also in float32, and no denominator, root or logarithm leaves its domain.

    The ranges' first entries belong together, and their second; y is a number plus or minus s**order, or s itself
    where the ranges are the same. Decided at some thousand points, dense at both ends; infinity is |y| = 1e38.
    """
    return sound_at(form, *_points(y_range, s_range, order))


def _points(y_range: tuple[float, float], s_range: tuple[float, float], order: int) -> tuple[Array, Array]:
    """y and s along the branch, from its finite end to the other; each (n,)."""
    if tuple(y_range) == tuple(s_range):
        y = _spread(*y_range, EXTREME)
        return y, y
    (y0, s0), (y1, s1) = sorted(zip(y_range, s_range, strict=True), key=lambda end: not np.isfinite(end[1]))
    s = _spread(s0, s1, EXTREME ** (1 / order))
    away: Array = np.abs(np.abs(s) ** order - abs(s0) ** order)
    return y0 + np.sign(y1 - y0) * away, s


def _spread(a: float, b: float, extreme: float) -> Array:
    """Points from `a` to `b`, dense at finite ends and out to +-`extreme` at infinite ones."""
    if not np.isfinite(a) and not np.isfinite(b):
        return np.concatenate([_spread(0, a, extreme), _spread(0, b, extreme)])
    if not np.isfinite(a):
        a, b = b, a
    near = np.geomspace(1e-12, 1, 300)
    if np.isfinite(b):
        return np.concatenate([[a, b], a + (b - a) * np.linspace(0, 1, 1000), a + (b - a) * near, b - (b - a) * near])
    steps = np.concatenate([[0.0], near, np.linspace(0, 16, 1600), np.geomspace(16, 0.5 * extreme, 400)])
    points: Array = a + np.sign(b) * steps
    return points


# Forms from formulas


@pytest.mark.parametrize(
    ("text", "expression", "values"),
    [
        ("s*(1.5 - 2.25*s)/(1 + 0.4*s)", S * (C[1] + C[2] * S) / (1 + C[0] * S), (0.4, 1.5, -2.25)),
        ("3*s*(1.5 - 2.25*s)/(2 + 0.8*s)", S * (C[1] + C[2] * S) / (1 + C[0] * S), (0.4, 2.25, -3.375)),
        ("1.0*s + 0.0*y", S, ()),
        ("2*(3*(4*y + 5))", C[0] + C[1] * Y, (30, 24)),
        ("1 - y", 1 - Y, ()),
        ("s**2.0 + s**3 + 1/s**2", S**2 + S**3 + S**-2, ()),
        ("s**1.3", S ** C[0], (1.3,)),
        ("0.75", C[0], (0.75,)),
        ("-s", -S, ()),
        ("0.5*(4*y + 2*s)**2", C[0] * (C[1] * S + Y) ** 2, (8, 0.5)),
        ("3*sqrt(4*y)", C[0] * sqrt(Y), (6,)),
        ("abs(4*y + 2*s)", C[0] * Abs(C[1] * S + Y), (4, 0.5)),
        ("2*exp(y + 0) - exp(-s)", C[0] * exp(Y) - exp(-S), (2,)),
        ("(2*y + 3)*(4*s + 8)", (C[0] * Y + 1) * (C[1] * S + C[2]), (2 / 3, 24, 12)),
    ],
)
def test_numbers_become_constants(text, expression, values):
    found = form(text)
    assert len(found.values) == len(found.expression.free_symbols - {Y, S})
    if values is not None:
        assert sorted(found.values) == sorted(values)
    renamed = [dict(zip(found.constants, order, strict=True)) for order in orders(found.constants)]
    assert any(found.expression.xreplace(names) == expression for names in renamed)


def orders(constants):
    return [[C[i] for i in order] for order in permutations(range(len(constants)))]


def test_a_shift_in_an_exponential_is_a_factor():
    found = form("2*exp(1.5*y + 0.25)")
    assert found.expression in (C[0] * exp(C[1] * Y), C[1] * exp(C[0] * Y))
    assert sorted(found.values) == pytest.approx([1.5, 2 * float(np.exp(0.25))], rel=1e-15)


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
def test_a_form_is_the_same_function(expression, y, s):
    """Up to the rounding of its constants, half an ulp each, and their effect: the derivatives by them."""
    found = to_form(expression, "test")
    with mpmath.workdps(40):
        want = Tape(expression, Y, S).mp(mpmath.mpf(y), mpmath.mpf(s))
        at = (mpmath.mpf(y), mpmath.mpf(s), *map(mpmath.mpf, found.values))
        got = Tape(found.expression, Y, S, *found.constants).mp(*at)
        slopes = [Tape(found.expression.diff(c), Y, S, *found.constants).mp(*at) for c in found.constants]
        allowed = sum(abs(slope * value) for slope, value in zip(slopes, found.values, strict=True)) * 2**-53
        assert abs(got - want) <= 1.01 * allowed + 1e-30 * (1 + abs(want))


@given(expressions)
def test_no_number_is_left_that_is_not_structure(expression):
    found = to_form(expression, "test")
    assert len(found.values) == len(found.expression.free_symbols - {Y, S})
    powers = {p.exp for p in found.expression.atoms(sympy.Pow)}
    assert all(n in powers or abs(n) == 1 for n in found.expression.atoms(sympy.Rational))


# What is kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("1 - exp(-y)", True),
        ("s/(1 + 0.4*s)", True),
        ("1/(1 - 0.4*s)", False),  # a pole at s = 2.5
        ("1/(s - 2.5)**2", False),
        ("1/abs(s - 2.5)", False),
        ("1/(abs(s - 2.5) + 1)", True),
        ("1/s", False),
        ("log(s)", False),
        ("1/log(s + 0.5)", False),  # log is 0 at s = 0.5
        ("log(s + 1)", True),
        ("sqrt(s)", True),
        ("sqrt(1 - s)", False),
        ("sqrt(abs(1 - s))", True),
        ("(s + 0.5)**1.3", True),
        ("(s - 0.5)**1.3", False),
        ("exp(y)", False),  # infinite in the end
        ("y**2*exp(-y)", False),  # infinite times 0 in float32
        ("exp(-y**2)", True),
        ("0.5 + 0*s", False),  # constant
    ],
)
def test_sound_to_infinity(text, kept):
    assert sound(form(text), (-0.17, np.inf), (0.0, np.inf)) == kept


def test_sound_on_a_bounded_branch():
    left = (-0.17, 0.0), (0.0, 0.17**0.5)
    assert sound(form("1/(1 - 0.4*s)"), *left)
    assert sound(form("sqrt(0 - y)"), *left)
    assert not sound(form("1/(s - 0.3)"), *left)
    assert not sound(form("sqrt(y)"), *left)
    falling = (0.17, 0.0), (0.0, 0.17**0.5)
    assert sound(form("sqrt(y)"), *falling)
    assert sound(form("exp(-y*y)"), (-np.inf, np.inf), (-np.inf, np.inf))
    assert not sound(form("1/(y + 4)"), (-np.inf, np.inf), (-np.inf, np.inf))


def test_the_front_is_ordered_and_each_is_better():
    forms = [form(text) for text in ("1.4*s*exp(-2*s) + 0", "1.1*s", "1.2*s", "0.3*s + 0.1", "1/(s - s**2)", "2*s + y")]
    kept = front(forms, data())
    assert front(reversed(forms), data()) == kept
    assert [size(one) for one in kept] == sorted({size(one) for one in kept})
    errors = [error(one, data()) for one in kept]
    assert all(b < a for a, b in pairwise(errors))
    assert all(np.isfinite(errors))
    assert min(error(one, data()) for one in forms[:-2]) == errors[-1]


def test_the_error_is_weighted():
    at = Data(np.zeros(2), np.array([1.0, 2.0]), np.array([2.0, 5.0]), np.array([3.0, 1.0]))
    assert error(Form(S, (), "test"), at) == (3 * 1 + 1 * 9) / 4
    assert np.isnan(error(form("sqrt(0 - s)"), at))


def test_pruning_leaves_out_one_number():
    found = {one.expression for one in pruned(form("0.5*s + 0.25"))}
    assert found == {C[0] * S}  # not the number alone
    assert list(pruned(Form(1 / (C[0] * S), (2.0,), "test"))) == []


# Operon


def test_resampling_stands_for_weights():
    weight = np.array([0.0, 1.0, 3.0, 0.0, 0.5])
    chosen = operon.resample(weight, 90)
    assert np.all(np.abs(np.bincount(chosen, minlength=5) - 90 * weight / 4.5) < 1)
    assert np.all(np.diff(chosen) >= 0)
    assert list(operon.resample(np.ones(7), 7)) == list(range(7))


@cache
def fitted():
    """A small run of Operon's own: the model, and random points."""
    from pyoperon.sklearn import SymbolicRegressor

    settings = operon.SETTINGS | {"population_size": 200, "generations": 2, "optimizer_iterations": 2}
    given = data()
    features = np.column_stack([given.y + 0.2, given.s])
    model = SymbolicRegressor(**settings, random_state=3).fit(features, given.target)
    return model, np.random.default_rng(0).uniform(0.01, 0.6, (50, 2))


@pytest.mark.slow
@has_operon
def test_trees_are_read_as_operon_means_them():
    model, points = fitted()
    trees = [entry["tree"] for entry in model.pareto_front_] + [one.Genotype for one in model.individuals_]
    used, unread = set(), 0
    for tree in trees:
        tokens = operon._tokens(tree, list(model.variables_))
        used |= {kind for kind, *_ in tokens}
        forms = operon._forms([tokens])
        unread += not forms
        for one in forms:
            want, got = model.evaluate_model(tree, points).astype(float), evaluate(one, *points.T)
            with np.errstate(all="ignore"):
                bound = float32_bound(tokens, *points.T)
            told = np.isfinite(want) & (bound < 1)
            assert np.all(np.abs(got - want)[told] <= bound[told])
    assert used == {"Add", "Sub", "Mul", "Div", "Sqrt", "Exp", "Square", "Constant", "Variable"}
    assert unread < 0.1 * len(trees)  # of which some part is the root of a negative number


def float32_bound(tokens, y, s):
    """What rounding to float32 at every node can make of the value, first order, doubled."""
    eps, stack = 2.0**-23, []
    for kind, arity, value, index in tokens:
        operands = [stack.pop() for _ in range(arity)]
        match kind:
            case "Variable":
                result, off = (y, s)[index], 0 * y
            case "Constant":
                result, off = np.ones_like(y), 0 * y
            case "Add" | "Sub":
                (a, da), (b, db) = operands
                result, off = (a + b if kind == "Add" else a - b), da + db
            case "Mul":
                (a, da), (b, db) = operands
                result, off = a * b, abs(a) * db + abs(b) * da
            case "Div":
                (a, da), (b, db) = operands
                result, off = a / b, (da + abs(a / b) * db) / abs(b)
            case "Exp":
                ((a, da),) = operands
                result, off = np.exp(a), np.exp(a) * da
            case "Sqrt":
                ((a, da),) = operands
                result, off = np.sqrt(a), da / np.sqrt(a)
            case "Square":
                ((a, da),) = operands
                result, off = a * a, 2 * abs(a) * da
        result = value * result
        stack.append((result, abs(value) * off + 4 * eps * abs(result)))
    return 2 * stack.pop()[1] + 1e-37


def test_nodes_of_one_and_of_three_operands():
    def token(kind, arity):
        return (kind, arity, 1.0, -1)

    y, s, three = ("Variable", 0, 2.0, 0), ("Variable", 0, 1.0, 1), ("Constant", 0, 3.0, -1)
    assert operon.read([y, token("Sub", 1)]) == -2 * Y
    assert operon.read([s, token("Div", 1)]) == 1 / S
    # Last written is first: what pyoperon.Evaluate made of 5, 3, 2: 2 - 3 - 5 and 2/3/5.
    assert operon.read([y, s, three, token("Sub", 3)]) == 3 - S - 2 * Y
    assert operon.read([y, s, three, token("Div", 3)]) == 3 / S / (2 * Y)


@has_operon
@pytest.mark.slow
def test_operon_finds_a_known_structure_and_the_same_again(monkeypatch):
    monkeypatch.setitem(operon.SETTINGS, "population_size", 300)
    monkeypatch.setitem(operon.SETTINGS, "generations", 30)
    done = []
    found = operon.search(data(), seed=1, budget=2, progress=done.append)
    again = operon.search(data(), seed=1, budget=2)
    assert found == again
    assert done == [1, 2]
    line = np.polynomial.Polynomial.fit(data().s, data().target, 1)
    assert error(found[-1], data()) < 1e-3 * np.mean((line(data().s) - data().target) ** 2)
    assert error(found[-1], data()) < 1e-12  # float32 rounds at 1e-15
    assert found == front(found, data())
    narrow = operon.search(data(), seed=1, budget=1, accept=lambda one: not one.expression.has(Y))
    assert narrow
    assert not any(one.expression.has(Y) for one in narrow)


def test_a_missing_engine_names_its_package(monkeypatch):
    monkeypatch.setattr(operon, "find_spec", lambda name: None)
    monkeypatch.setattr(pysr, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install pyoperon"):
        operon.search(data(), 0, 1)
    with pytest.raises(InputError, match="pip install pysr"):
        pysr.search(data(), 0, 1, maxsize=20)


# The process of its own


@pytest.mark.slow
def test_a_child_that_fails_is_one_line(tmp_path):
    with (
        pytest.raises(InputError, match=r"engine operon: .*data\.npz") as caught,
        child("fitting.invact.symbolic.operon", tmp_path, subprocess.PIPE),
    ):
        pass
    assert "\n" not in str(caught.value)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that `python -m` finds."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))

    def write(name, source):
        (folder / f"{name}.py").write_text(source, "utf-8")
        return name

    return write


def test_a_child_is_gone_after_an_interrupt(tmp_path, module):
    sleeper = module("sleeper", "import time\nwhile True: time.sleep(1)")
    with pytest.raises(KeyboardInterrupt), child(sleeper, tmp_path, subprocess.PIPE) as process:
        raise KeyboardInterrupt
    assert process.poll() is not None


def test_a_child_is_stopped_at_its_limit(tmp_path, module):
    sleeper = module("sleeper", "import time\nwhile True: time.sleep(1)")
    limited = pytest.raises(InputError, match=r"engine sleeper: its process was stopped after 0\.2 seconds")
    with limited, child(sleeper, tmp_path, subprocess.PIPE, 0.2):
        pass


def test_a_search_that_dies_between_two_runs_is_one_line(module, monkeypatch):
    dying = module("dying", "import os, sys\nsys.stdout.write('[]\\n[[[\"Var')\nsys.stdout.flush()\nos.abort()")
    monkeypatch.setattr(operon, "find_spec", lambda name: True)
    monkeypatch.setattr(operon, "child", lambda name, *rest: child(dying, *rest))
    with pytest.raises(InputError, match=r"engine dying: .*-6"):
        operon.search(data(), 1, 2)


def test_a_child_that_crashes_is_one_line(tmp_path, module):
    crasher = module("crasher", "import os\nos.abort()")
    with pytest.raises(InputError, match=r"engine crasher: .*-6"), child(crasher, tmp_path, subprocess.PIPE):
        pass


# Halls of fame


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
        assert [one.values for one in equations.read_hall_of_fame(folder)] == [(0.5,)]
    (tmp_path / "outputs" / "new" / "hall_of_fame.csv").unlink()
    assert len(equations.read_hall_of_fame(tmp_path / "outputs" / "new")) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "row 1: columns must include Complexity, Loss, Equation, got 'a, b'"),
        ("Complexity,Loss,Equation\n", "at least one row"),
        ("", "row 1: columns must include"),
        ("Complexity,Loss,Equation\n1,0.5,x0\n2,much,x0\n", "row 3 column Loss: must be a number, got 'much'"),
        ("Complexity,Loss,Equation\n1,0.5\n", "row 2: must have as many fields"),
        ("Complexity,Loss,Equation\n1,0.5,x0,x1\n", "row 2: must have as many fields"),
        ('Complexity,Loss,Equation\n1,0.5,"x0\n', "must be CSV"),
        ("Complexity,Loss,Equation\n1,0.5,x2\n", "row 2 column Equation: .*unknown name 'x2'"),
        ("Complexity,Loss,Equation\n1,0.5,cos x0\n", "row 2 column Equation: .*malformed"),
        ("Complexity,Loss,Equation\n1,0.5,inv(0)\n", "row 2 column Equation: .*not a real number"),
        ("Complexity,Loss,Equation\n1,0.5,1e400*x0\n", "row 2 column Equation: .*1.8e308"),
        (f"Complexity,Loss,Equation\n1,0.5,{'x0+' * 1000}1\n", "row 2 column Equation: .*characters"),
        ("Complexity,Loss,Equation\n1,0.5,9^9^9^9\n", "row 2 column Equation: .*too large"),
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
    ["__import__('os').getpid()", "__import__('pathlib').Path('{}').touch()", "open('{}', 'w')", "x0.__class__"],
)
def test_an_equation_is_never_run(tmp_path, monkeypatch, equation):
    mark, ran = tmp_path / "mark", []
    monkeypatch.setattr(os, "getpid", lambda: ran.append(1))
    file = fame(tmp_path, f'Complexity,Loss,Equation\n1,0.5,"{equation.format(mark)}"\n')
    with pytest.raises(InputError, match="row 2 column Equation"):
        equations.read_hall_of_fame(file)
    assert not ran
    assert not mark.exists()


# PySR


def test_guesses_are_spelled_in_the_search_s_own_operators():
    assert pysr.spell(form("s*(1.5 - 2.25*s)/(1 + 0.4*s)"))[1] == 13
    for text in ("s**3 - 1/s**2 + y**4", "2*exp(-0.3*y)/sqrt(s + 1) - s**2.5", "1/((y + 2)*(s + 3))"):
        spelled, nodes = pysr.spell(form(text))
        assert nodes < 30
        again = equations.equation(spelled)
        points = np.random.default_rng(1).uniform(0.1, 2, (2, 20))
        assert evaluate(again, *points) == pytest.approx(evaluate(form(text), *points), rel=1e-13)
    for text in ("log(s + 2)", "max(s, 1)", "s**1.3", "abs(s)"):
        assert pysr.spell(form(text)) == ("", 0)


# Stands in for Julia: it records what PySR's Python layer hands over, and leaves the file that the search would.
JULIACALL = """
import json, os
from pathlib import Path
from unittest.mock import MagicMock
AnyValue = VectorValue = type("Value", (), {})
JuliaError = type("JuliaError", (Exception,), {})
convert = Main = MagicMock()
Main.VERSION.major, Main.VERSION.minor, Main.VERSION.patch = 1, 11, 5
def search(*args, **kwargs):
    handed = Main.SymbolicRegression.Options.call_args.kwargs
    folder = Path(handed["output_directory"]) / kwargs["run_id"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hall_of_fame.csv").write_text('Complexity,Loss,Equation\\n3,0.5,"x1 * 1.5"\\n')
    plain = lambda table: {k: v for k, v in table.items() if isinstance(v, (int, float, str, bool, type(None)))}
    record = {"options": plain(handed), "search": plain(kwargs), "calls": str(Main.mock_calls)}
    Path(os.environ["RECORD"]).write_text(json.dumps(record))
Main.SymbolicRegression.equation_search._jl_call_nogil = search
"""


@has_pysr
@pytest.mark.slow
def test_the_arguments_go_through_pysr_s_python_layer(tmp_path, module, monkeypatch):
    """The real PySRRegressor takes our arguments and weights and hands them on. Julia does NOT run here.

    A stand-in for juliacall records what arrives and writes the file that Julia would write: what a machine without
    Julia can show of the mapping, and no more.
    """
    module("juliacall", JULIACALL)
    monkeypatch.setenv("RECORD", str(tmp_path / "record.json"))
    guess = form("s*(1.5 - 2.25*s)/(1 + 0.4*s)")
    found = pysr.search(data(), 5, 7, maxsize=21, timeout=60, guesses=[guess])
    assert found == [Form(C[0] * S, (1.5,), "pysr")]
    record = json.loads((tmp_path / "record.json").read_text("utf-8"))
    given, started = record["options"], record["search"]
    assert (given["maxsize"], given["npopulations"], given["timeout_in_seconds"]) == (21, 15, 60)
    assert (given["deterministic"], given["batching"], given["print_precision"]) == (True, False, 17)
    assert isinstance(given["seed"], int)
    assert (started["niterations"], started["parallelism"]) == (7, "serial")
    assert pysr.spell(guess)[0] in record["calls"]
    assert "(exp) => Dict((exp) => 1" in record["calls"]
    assert not Path(given["output_directory"]).exists()  # nothing is left behind


@has_pysr
def test_a_search_without_formulas_says_so(monkeypatch):
    monkeypatch.setattr(pysr, "child", lambda *arguments: nullcontext())
    with pytest.raises(InputError, match="give it more time"):
        pysr.search(data(), 1, 1, maxsize=15)


@has_pysr
def test_every_argument_is_one_of_pysr_s(tmp_path):
    """By the source of the installed PySR, which is parsed and not imported: an import would start Julia."""
    source = Path(find_spec("pysr").submodule_search_locations[0], "sr.py").read_text("utf-8")
    regressor = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == "PySRRegressor")
    init = next(n for n in regressor.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    known = {argument.arg for argument in [*init.args.args, *init.args.kwonlyargs]}
    assert set(pysr.options(tmp_path, 1, 2, maxsize=20, guesses=[form("s")])) <= known


def julia_starts() -> bool:
    command = [sys.executable, "-c", "import socket; socket.setdefaulttimeout(30); import pysr"]
    return find_spec("pysr") is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


@has_pysr
@pytest.mark.slow
def test_pysr_searches():
    """The whole search, where there is a Julia."""
    if not julia_starts():
        with pytest.raises(InputError, match=r"PySR's Julia does not start .*--import-pysr DIR.*--engine operon"):
            pysr.search(data(), 1, 1, maxsize=15)
        pytest.skip("Julia cannot be had on this machine")
    found = pysr.search(data(100), 1, 5, maxsize=15, guesses=[form("s*(1.5 - 2.25*s)/(1 + 0.4*s)")])
    assert found == pysr.search(data(100), 1, 5, maxsize=15, guesses=[form("s*(1.5 - 2.25*s)/(1 + 0.4*s)")])
    assert error(found[-1], data()) < 1e-6
