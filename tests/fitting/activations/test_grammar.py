"""The grammar of expressions: what it accepts, what it refuses and at which position, and its limits."""

import contextlib
import re
import warnings

import numpy as np
import pytest

from actfit.fitting.activations import from_expression, get
from actfit.fitting.activations.functions import STABLE_FUNCTIONS, x
from actfit.fitting.activations.grammar import FUNCTIONS, MAX_BITS, MAX_DEPTH, MAX_LENGTH, RESERVED, parse
from actfit.fitting.errors import LONGEST, InputError
from tests.fitting.activations.reference_values import POINTS, REFERENCE, value
from tests.fitting.agreement import EPS, assert_agree


def refusal(text, parameters=None):
    with pytest.raises(InputError) as caught:
        parse(text, parameters)
    message = str(caught.value)
    assert message.isprintable()  # hence one line
    return message


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("x", POINTS),
        ("-x**2", -(POINTS**2)),
        ("2**3**2*x", 512 * POINTS),
        ("x*.5", POINTS / 2),
        ("where(x > 0, x, 0)", np.maximum(POINTS, 0)),
        ("where(-1 <= x < 0.3, 1, x)", np.where((POINTS >= -1) & (POINTS < 0.3), 1, POINTS)),
        ("where(x < -1 or x > 1, x, 0)", np.where(np.abs(POINTS) > 1, POINTS, 0)),
        ("where(x > 0 or x < -1 and x > -2, x, 9)", np.where(POINTS > 0, POINTS, 9)),
        ("Piecewise((1, x < 0), (x, x < 1), (2, True))", np.where(POINTS < 0, 1, np.where(POINTS < 1, POINTS, 2))),
        ("min(x, -x)", -np.abs(POINTS)),
        ("min(max(x, -1), 1)", np.clip(POINTS, -1, 1)),  # a condition of a condition
        ("where(where(x > 0, 1, -1)*x > 1, x, 0)", np.where(np.abs(POINTS) > 1, POINTS, 0)),
        ("sign(x)*sqrt(abs(x))", np.sign(POINTS) * np.sqrt(np.abs(POINTS))),
    ],
)
def test_what_is_read(text, want):
    assert_agree(POINTS, value(text), want, rtol=4 * EPS)


def test_every_function_has_a_reference():
    assert set(REFERENCE) == set(FUNCTIONS) - {"where"}
    assert set(STABLE_FUNCTIONS) <= set(FUNCTIONS)


@pytest.mark.parametrize("name", REFERENCE)
def test_every_function(name):
    points = POINTS[POINTS > 0] if name in ("log", "sqrt", "log1p") else POINTS
    count = FUNCTIONS[name][0]
    want = REFERENCE[name](points) if count == 1 else REFERENCE[name](points, 0.7)
    assert_agree(points, value(f"{name}({', '.join(['x', '0.7'][:count])})", points), want, rtol=8 * EPS)
    for wrong in (count - 1, count + 1):
        assert f"{name} takes {count} argument" in refusal(f"{name}({', '.join(['x'] * wrong)})")


@pytest.mark.parametrize("name", sorted(set(STABLE_FUNCTIONS) | {"erf", "exp", "atan"}))
def test_comparing_numbers_uses_the_function_of_that_name(name):
    # sympy looks unknown functions up in mpmath, where phi is the golden ratio.
    for at in (-1.3, 0.7, 2.0):
        at = abs(at) if name == "log1p" else at
        exact = float(REFERENCE[name](np.array(at)))
        for shift, text in ((1e-9, "x"), (-1e-9, "0")):
            assert parse(f"where({name}({at}) < {exact + shift:.12f}, x, 0)") == parse(text)


def test_numbers_are_exact_decimals_and_parameters_exact_floats():
    assert parse("0.1*10*x") == x
    assert parse("a*10*x", {"a": 0.1}) != x
    assert parse("a*x", {"a": 0.5}) == parse("x/2")
    assert value("a*x + b", a=2.0, b=-1.0).tolist() == (2 * POINTS - 1).tolist()


# (text, position counted from 1, words of the reason)
REFUSED = [
    ("y", 1, "unknown name 'y'"),
    ("x + sigmoyd", 5, "did you mean sigmoid"),
    ("x + foo(x)", 5, "unknown function 'foo'"),
    ("x*tahn(x)", 3, "did you mean tan or tanh"),
    ("1 + 2j*x", 5, "'2j' is not a plain decimal"),
    ("x*0x10", 3, "'0x10' is not a plain decimal"),
    ("x + 'a'", 5, "is not a plain decimal"),
    ('x + f"{x}"', 5, "text is not allowed"),
    ("x*1e400", 3, "is not a plain decimal number below 1.8e308"),
    ("x ^ 2", 3, "write ** for powers"),
    ("x & 2", 3, "operator & outside of a condition is"),
    ("~x", 1, "UnaryOp is not allowed"),
    ("x and x", 1, "must stand in a condition: use where(condition, a, b), at position"),
    ("x*(x > 0)", 4, "a comparison must stand in a condition: use where(condition, a, b), at position"),
    ("x if x > 0 else 0", 1, "'if' is not allowed: use where(condition, a, b), at position"),
    ("x.real", 1, "a dot after a name is not allowed"),
    ("x[0]", 1, "[ ] is not allowed"),
    ("lambda: 1", 1, "Lambda is not allowed"),
    ("torch.tanh(x)", 1, "only plain calls like exp(x) are allowed: write tanh(x), at position 1 of"),
    ("x*a", 3, "unknown name 'a' (the variable is x; a parameter takes its value by --param a=1) at"),
    ("steepness*x", 1, "(the variable is x; a parameter takes its value by --param steepness=1) at"),
    ("sin(x=x)", 1, "only plain calls"),
    ("x + (sin(2*x))^2/2", 15, "operator ^ (write ** for powers) is not allowed at position 15 of"),
    ("piecewise(x > 0, x, 0)", 1, "write Piecewise((a, condition), ..., (b, True))"),
    ("floor(x)", 1, "unknown function 'floor' (steps are written by where(condition, a, b))"),
    ("x*ln(x)", 3, "write log(x)"),
    ("Piecewise(x, 0)", 11, "takes (value, condition) pairs: Piecewise((a, condition), ..., (b, True)), at"),
    ("sin", 1, "sin is a function: write sin(x), at position"),
    ("x + where", 5, "where is a function: write where(condition, a, b), at position"),
    ("Piecewise*x", 1, "write Piecewise((a, condition), ..., (b, True)), at position"),
    ("x + 2(x)", 5, "2 is no function: write * for products, at position"),
    ("x*(x + " + "y" * 1900 + ")", 8, "unknown name 'yyy"),
    ("pi(x)", 1, "pi is no function: write * for products, at position"),
    ("__import__('os')", 1, "unknown function '__import__'"),
    ("1/0*x", 1, "division by zero"),
    ("x*log(0)", 3, "not a real number"),
    ("x + sqrt(-1)", 5, "not a real number"),
    ("tan(pi/2)*x", 1, "not a real number"),
    ("(-1)**x", 1, "must be positive"),
    ("9**9**9**9*x", 4, "a power too large"),
    ("x*2**1100", 3, "a power too large"),
    ("x*sin(exp(exp(20)))", 7, "not a real number below 1.8e308"),
    ("((((2*x)**1000)**1000)**1000)**1000", 3, "too large or of too many digits"),
    ("x*0." + "3" * 1300, 3, "too many digits"),
    ("relu(1 + " + "+".join(f"max(x, {i})" for i in range(7)) + ")", 1, "conditions on conditions of more than 64"),
    ("where(x > 1 + " + "*".join(f"max(x, {i})" for i in range(7)) + ", x, 0)", 1, "conditions on conditions"),
    ("where(x, x, 0)", 7, "a condition must compare"),
    ("where(x == 0, 1, x)", 7, "a condition must compare with <, <=, > or >="),
    ("where(x > 0 & x < 1, x, 0)", 13, "operator & outside of a condition"),
    ("where(x > 0, x)", 1, "where takes 3 arguments, got 2"),
    ("Piecewise((x, x > 0))", 1, "the last condition of Piecewise must be True"),
    ("Piecewise((x, x > 0, 1), (0, True))", 11, "(value, condition) pairs"),
    ("Piecewise((x, True), evaluate=0)", 1, "only plain calls"),
    ("x # a comment", 3, "no comments"),
    ("x +", 4, "malformed"),
    ("007*x", 1, "malformed"),
]


@pytest.mark.parametrize(("text", "position", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused(text, position, reason):
    message = refusal(text)
    assert reason in message
    assert int(re.search(r"at position (\d+) of", message)[1]) == position


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expression is empty: write one of x, such as x*sigmoid(x)"),
        ("\t", "one line of plain ASCII"),
        ("x\n", "one line of plain ASCII"),
        ("x²", "one line of plain ASCII"),
        ("x\ud800", "one line of plain ASCII"),
        ("x" + " " * MAX_LENGTH + "+ 1", f"at most {MAX_LENGTH} characters"),
        ("(" * 150 + "x" + ")" * 150, None),  # parentheses alone are no nesting
        ("(" * 500 + "x" + ")" * 500, "malformed"),
        ("-" * 500 + "x", f"nested more than {MAX_DEPTH} deep"),
        ("+".join(["x"] * 900), f"more than {MAX_DEPTH} terms in a row: group them with parentheses, at position"),
        ("x**" * 600 + "x", f"nested more than {MAX_DEPTH} deep"),
        ("where(x>0," * 150 + "x" + ",0)" * 150, f"nested more than {MAX_DEPTH} deep"),
        ("*".join(["sin(x)"] * 200), f"more than {MAX_DEPTH} terms in a row: group them with parentheses, at position"),
        ("\u0663*x", "one line of plain ASCII"),
        ("where(" + "&".join(["(x>0)"] * 300) + ",x,0)", None),
    ],
    ids=range(15),
)
def test_odd_text(text, reason):
    if reason is None:
        parse(text)
    else:
        assert reason in refusal(text)


def test_a_long_word_is_not_printed_in_full():
    """Every message of the grammar quotes a bounded part of its input."""
    for text in ("y" * 1999, "x + " + "y" * 1900 + " +", "x*(" + "9" * 1900 + ")", "'" + "a" * 1900 + "'", "é" * 1900):
        assert len(refusal(text)) < 500
    for make in (
        lambda word: from_expression("x", word + "-"),
        lambda word: from_expression("x", params={word + "-": 1.0}),
        lambda word: from_expression("x", params={word: 1.0}),
        lambda word: get(word),
        lambda word: get("elu", **{word: 1.0}),
    ):
        with pytest.raises(InputError) as caught:
            make("w" * 10_000_000)
        assert len(str(caught.value)) <= LONGEST
        assert "\n" not in str(caught.value)


def test_limits_are_where_they_are_said_to_be():
    assert parse("-" * (MAX_DEPTH - 1) + "x") in (x, -x)
    assert "deep" in refusal("-" * MAX_DEPTH + "x")
    padding = " " * (MAX_LENGTH - 3)
    assert parse("x +" + padding[:-2] + " x") == 2 * x
    assert parse(f"x*{2**1023}") == 2**1023 * x
    assert parse("x**1000") == x**1000
    assert len(bin(int("3" * 1300))) > MAX_BITS


def test_parameters_are_no_way_in():
    assert parse("x + a", {"a": 1.5}) == x + parse("1.5")
    assert "unknown name" in refusal("x + b", {"a": 1.5})
    assert "division by zero" in refusal("x/a", {"a": 0.0})
    assert "not a real number below" in refusal("x*exp(a)", {"a": 1e4})
    assert {"x", "where", "Piecewise", "pi", "E", "exp", "sigmoid"} <= RESERVED


@pytest.mark.parametrize("text", ["where(0<x and x<1or x>3, x, 0)", "x*1if x else 2", "'\\d'*x", "x*1in x", "1(x)"])
def test_python_does_not_warn_about_the_text(text):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with contextlib.suppress(InputError):
            parse(text)
    assert not caught
