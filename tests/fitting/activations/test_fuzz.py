"""Random text for the grammar: it is read or refused, never run; random trees have the value that was written."""

import operator
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from actfit.fitting.activations.grammar import FUNCTIONS, parse
from actfit.fitting.activations.tape import Tape
from actfit.fitting.errors import InputError
from tests.fitting.activations.reference_values import REFERENCE
from tests.fitting.agreement import assert_agree


class Watch:
    """Fails the test when Python runs code made from text, writes a file or spawns; sympy's late imports may pass."""

    active = False

    def __call__(self, event, arguments):
        if not self.active:
            return
        made_from_text = event == "exec" and re.match(r"<(?!frozen)", arguments[0].co_filename)
        if made_from_text and not set(arguments[0].co_names) & {"__import__", "open", "exec", "eval", "__class__"}:
            # sympy makes some of its own functions, and named tuples, from its own text when first used.
            made_from_text = not sys._getframe(1).f_globals["__name__"].startswith(("sympy.", "collections"))
        writes = event == "open" and set(arguments[1] or "") & set("wax+") and "__pycache__" not in str(arguments[0])
        if made_from_text or writes or event.startswith(("os.system", "os.exec", "subprocess.", "socket.", "ctypes.")):
            raise AssertionError(f"{event} {arguments}")


WATCH = Watch()
sys.addaudithook(WATCH)

PLANTED = (
    "__import__('os').system('touch /tmp/planted')",
    "open('/tmp/planted', 'w')",
    "exec('import os')",
    "eval('1')",
    "x.__class__.__mro__",
    "().__class__.__bases__[0].__subclasses__()",
    "(lambda: x)()",
    "[x for x in (1,)]",
    "(y := x)",
    "f'{x!r}'",
    "f'{open(\"/tmp/planted\")}'",
    "`ls`",
    "9**9**9",
    "1e308**1000",
    "(2*x)**1000",
    "exp(exp(exp(9)))",
    "sin(1e308)",
)
NAMES = [*FUNCTIONS, "Piecewise", "pi", "E", "x", "x", "x", "a"]
NUMBERS = ["0", "1", "2", "3", "0.5", "1/3", "1e3", "1e-300", "1e308", "709", "-1", "1000", "0.1", "12345678901"]
OPERATORS = [*"+-*/(),<>^&|~%@:;=.[]{}'\"#\\", "**", "//", "<=", ">=", "==", "!=", " and ", " or ", " not ", " if "]
WORDS = [" else ", " in ", " is ", "lambda", "True", "False", "None", "await ", "yield ", "\n", "\t", "\0", "é", "_"]


def survive(text):
    start = time.perf_counter()
    WATCH.active = True
    try:
        expression = parse(text, {"a": 0.75})
    except InputError as error:
        message = str(error)
        assert message.isprintable(), message
        assert len(message) < len(text) * 10 + 1000
        return None
    finally:
        WATCH.active = False
        # On a slow and busy machine, too: a typical parse takes 5 ms.
        assert time.perf_counter() - start < 10, text
    return expression


fuzz = settings(max_examples=1000)


@fuzz
@given(text=st.text(alphabet=st.sampled_from("x0123456789.e+-*/()<>=, ,aPphis'\"\\[]{}:_#"), max_size=40))
def test_random_near_text(text):
    survive(text)


@fuzz
@given(tokens=st.lists(st.sampled_from([*NAMES, *NUMBERS, *OPERATORS, *WORDS, *PLANTED]), max_size=12))
def test_token_soup(tokens):
    survive("".join(tokens))


@pytest.mark.parametrize("text", PLANTED)
def test_planted_text_is_not_run(text):
    survive(text)
    survive(f"sin({text})")
    survive(f"where({text} > 0, x, 0)")
    assert not Path("/tmp/planted").exists()


def test_the_watch_can_fail(tmp_path):
    WATCH.active = True
    try:
        with pytest.raises(AssertionError, match="open"):
            (tmp_path / "never").write_text("")
        with pytest.raises(AssertionError, match="exec"):
            eval("1 + 1")
    finally:
        WATCH.active = False


# Random trees of the grammar, with their value by numpy, built side by side.


class Tree:
    def __init__(self, text, evaluate):
        self.text, self.evaluate = text, evaluate


def unary(name, child):
    # Moderate arguments, so that rounding errors are not amplified.
    return Tree(f"{name}(tanh({child.text}))", lambda p: REFERENCE[name](np.tanh(child.evaluate(p))))


def binary(symbol, a, b):
    apply = {"+": operator.add, "-": operator.sub, "*": operator.mul}[symbol]
    return Tree(f"({a.text} {symbol} {b.text})", lambda p: apply(a.evaluate(p), b.evaluate(p)))


def quotient(a, b):
    return Tree(f"{a.text}/(2 + sin({b.text}))", lambda p: a.evaluate(p) / (2 + np.sin(b.evaluate(p))))


def power(a, exponent):
    return Tree(f"(tanh({a.text}))**{exponent}", lambda p: np.tanh(a.evaluate(p)) ** exponent)


def piecewise(symbol, a, b, c, d):
    compare = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[symbol]
    # sin(0.123 + ...) keeps the two sides apart from ties that rounding would decide.
    left, right = f"tanh({a.text})", f"(0.1234567 + cos({b.text})/7)"
    return Tree(
        f"where({left} {symbol} {right}, {c.text}, {d.text})",
        lambda p: np.where(
            compare(np.tanh(a.evaluate(p)), 0.1234567 + np.cos(b.evaluate(p)) / 7), c.evaluate(p), d.evaluate(p)
        ),
    )


def negative(a):
    return Tree(f"-{a.text}", lambda p: -a.evaluate(p))


def constant(number):
    return Tree(str(number), lambda p: np.full_like(p, number))


leaves = st.one_of(
    st.just(Tree("x", lambda p: p)),
    st.just(Tree("a", lambda p: np.full_like(p, 0.75))),
    st.just(Tree("pi", lambda p: np.full_like(p, np.pi))),
    st.integers(0, 9).map(constant),
    st.sampled_from([0.5, 0.1, 2.75, 1e-3]).map(constant),
)
SMOOTH = sorted(set(REFERENCE) - {"log", "sqrt", "log1p", "max", "min", "sign", "relu", "abs", "Abs"})
trees = st.recursive(
    leaves,
    lambda children: st.one_of(
        st.builds(unary, st.sampled_from(SMOOTH), children),
        st.builds(binary, st.sampled_from("+-*"), children, children),
        st.builds(quotient, children, children),
        st.builds(power, children, st.integers(1, 4)),
        st.builds(piecewise, st.sampled_from(["<", "<=", ">", ">="]), children, children, children, children),
        st.builds(negative, children),
    ),
    max_leaves=8,
)


@settings(max_examples=150)
@given(tree=trees)
def test_random_trees_have_the_value_that_was_written(tree):
    points = np.array([-2.345, -0.777, 0.123, 0.654, 1.987])
    want = tree.evaluate(points)
    size = np.max(np.abs(want))
    assume(size < 1e6)
    got = Tape(parse(tree.text, {"a": 0.75})).numpy(points)
    # Derivatives of the pieces stay below about 10 per level; ten levels at most.
    assert_agree(points, got, want, rtol=1e-9, atol=1e-9 * (1 + size))
