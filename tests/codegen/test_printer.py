"""Printers and passes: the exact text of each rule, the value it has when run, and what is refused."""

import mpmath
import numpy as np
import pytest
import sympy
import torch
from sympy import Abs, And, Eq, Function, Not, Or, Piecewise, Rational, Symbol, cosh, exp, log, pi, sign, sinh, sqrt

from actfit.codegen import growth, passes, rewrites, sympy_functions
from actfit.codegen.function import Writer, numbers
from actfit.codegen.printer import TritonPrinter
from actfit.codegen.torch_printer import TorchPrinter
from actfit.fitting.activations.functions import expm1, log1p, maximum, minimum, phi, sech, sigmoid, softplus, tanh, x
from actfit.fitting.activations.tape import Tape
from actfit.fitting.errors import InputError
from tests.codegen.emitted import MEANING
from tests.codegen.run import module

a, c0, c1, c2, c3 = (Symbol(name, real=True) for name in ("a", "c0", "c1", "c2", "c3"))

# expression -> text for Triton and for PyTorch, where it decides on digits, or on what overflows
TEXTS = [
    (x / 6 + Rational(1, 2), "(x + 3.0) * 0.16666666666666666", "(x + 3.0) * 0.16666666666666666"),
    (2 * x + 1, "tl.fma(2.0, x, 1.0)", "2.0 * x + 1.0"),
    (c0 * x + c1 * x**2 + c2, "tl.fma(c1 * x, x, tl.fma(c0, x, c2))", "c2 + c0 * x + c1 * (x * x)"),
    (x * (1 + x**2) * sigmoid(-x), "sigmoid(-x) * x * tl.fma(x, x, 1.0)", "torch.sigmoid(-x) * x * (x * x + 1.0)"),
    (x**6, "(x * x * x) * (x * x * x)", "(x * x * x) * (x * x * x)"),
    (minimum(x, a), "minimum(x, a)", "torch.clamp(x, max=a)"),
    (
        Piecewise((1, And(x > 0, x < 1)), (0, True)),
        "tl.where(((x > 0.0) & (x < 1.0)), 1.0, 0.0)",
        "torch.where(((x > 0.0) & (x < 1.0)), 1.0, torch.full_like(x, 0.0))",
    ),
]


@pytest.mark.parametrize(("expression", "triton", "torch_text"), TEXTS, ids=lambda part: str(part)[:40])
def test_the_text_of_a_rule(expression, triton, torch_text):
    scalars = frozenset({a})
    assert TritonPrinter(scalars)._print(expression) == triton
    assert TorchPrinter(scalars)._print(expression) == torch_text


RULES = [
    *(x, -x, 2 * x, x + 1, x - 1, 1 - x, 2 * x + 1, x * sigmoid(x), x**2, x**3, x**6, 1 / x, (x + 1) / (x + 2)),
    *(sqrt(x), 1 / sqrt(x), 2**x, exp(x), x ** Rational(1, 3), Abs(x), maximum(x, 0), minimum(x, Rational(3, 4))),
    *(x / 6 + Rational(1, 2), Piecewise((0, x <= -1), (x, x < 2), (1, True))),
    *(Piecewise((1, And(x > 0, x < 1)), (0, True)), Piecewise((1, Or(x > 1, x < 0)), (0, True))),
]


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("target", ["triton", "torch"])
@pytest.mark.parametrize("expression", RULES, ids=lambda part: str(part)[:40])
def test_the_value_of_each_rule(expression, target, tmp_path):
    got = evaluate(expression, target, tmp_path)
    with np.errstate(all="ignore"):
        exact = Tape(expression).numpy(POINTS.astype(np.float64))
    # Six operations at most, each within a unit in the last place (division and rsqrt: two).
    np.testing.assert_allclose(got, np.float32(exact), rtol=12 * 2.0**-24, atol=1e-37, equal_nan=True)


POINTS = np.float32(np.concatenate([np.linspace(-4, 4, 61), [0.0, 1e-7, -1e-7]]))
RUN = """
@triton.jit
def run(x_ptr, y_ptr, n: tl.constexpr):
    at = tl.arange(0, n)
    tl.store(y_ptr + at, value(tl.load(x_ptr + at)))
"""


def evaluate(expression, target, folder):
    """`expression` of POINTS, as it is emitted."""
    from actfit.codegen.module import TRITON_IMPORTS, texts_of

    writer = Writer(target)
    writer.give(expression)
    function = writer.function("value", ("x",), "Under test.")
    points = torch.from_numpy(np.resize(POINTS, 64))
    texts = texts_of([function], "float32", target)
    if target == "torch":
        text = "\n\n".join(["import torch", *texts])
        return torch.broadcast_to(module(text, folder).value(points), points.shape).numpy()[: len(POINTS)]
    text = "\n\n".join([TRITON_IMPORTS, *texts, RUN])
    y = torch.full_like(points, torch.nan)
    with np.errstate(all="ignore"):
        module(text, folder).run[(1,)](points, y, 64)
    return y.numpy()[: len(POINTS)]


@pytest.mark.parametrize("printer", [TritonPrinter, TorchPrinter])
@pytest.mark.parametrize(
    ("expression", "name"),
    [
        (Function("system")(x), "system"),
        (sympy.floor(x), "floor"),
        (Piecewise((1, Eq(x, 1)), (0, True)), "Equality"),
        (sympy.oo * sympy.Symbol("x", positive=True), "Infinity"),
    ],
)
def test_what_is_not_in_the_list_is_refused_by_name(printer, expression, name):
    with pytest.raises(InputError, match=name):
        printer()._print(expression)


def test_a_power_of_two_variables_is_refused():
    with pytest.raises(InputError, match="constant base or a constant exponent"):
        TritonPrinter()._print(Abs(x) ** x)


def test_a_nested_polynomial_becomes_statements():
    writer = Writer("triton", constants={c0: 1.0, c1: 2.5, c2: -0.5, c3: 0.1})
    writer.give(c0 + x * (c1 + x * (c2 + c3 * x)))
    assert writer.function("f", ("x",), "A cubic.").text() == (
        '@triton.jit\ndef f(x):\n    """A cubic."""\n    c0 = 1.0\n    c1 = 2.5\n    c2 = -0.5\n    c3 = 0.1\n'
        "    p = tl.fma(c3, x, c2)\n    p = tl.fma(p, x, c1)\n    p = tl.fma(p, x, c0)\n    return p"
    )


def test_a_power_of_a_power_of_a_power_is_named():
    """Written out, each level would double the text."""
    writer = Writer("torch")
    writer.give((((x**2 + 1) ** 2 + 2) ** 2 + 3) ** 2)
    assert writer.lines == [
        "r = (x * x + 1.0) * (x * x + 1.0) + 2.0",
        "r_2 = r * r + 3.0",
        "return r_2 * r_2",
    ]


def test_common_parts_are_computed_once():
    writer = Writer("torch")
    writer.give(sigmoid(x + 1) * tanh(sigmoid(x + 1)))
    assert [line.replace("t0", "t") for line in writer.lines] == [
        "t = torch.sigmoid(x + 1.0)",
        "return torch.tanh(t) * t",
    ]


def test_numbers_are_exact_to_the_last_digit():
    assert float(numbers(sqrt(2 / pi) * x).as_coeff_Mul()[0]) == float(mpmath.sqrt(2 / mpmath.pi))
    assert numbers(x / 3) == x / 3


PASSES = [
    (passes.logistic, (1 + tanh(x)) * x / 2, x * sigmoid(2 * x)),
    (passes.softplus_by_name, log(1 + exp(x)), softplus(x)),
    (passes.sigmoid_by_name, 1 / (1 + exp(-x)), sigmoid(x)),
    (passes.quotient_of_exponentials, x * tanh(softplus(x)), x * sympy_functions.tanh_softplus(x)),
    (passes.shrink, x - tanh(x), sympy_functions.tanhshrink(x)),
    (growth.hyperbolic, 1 / cosh(2 * x), sech(2 * x)),
    (growth.hyperbolic, x / cosh(x) ** 3, x * sech(x) ** 3),
    (growth.hyperbolic, sinh(x) / cosh(x), tanh(x)),
    (growth.hyperbolic, sinh(x) ** 3 / cosh(x) ** 2, sinh(x) * tanh(x) ** 2),
    (growth.hyperbolic, 3 * x * exp(x) + 3 * x * exp(-x), 6 * x * cosh(x)),
    (growth.hyperbolic, (exp(x) - exp(-x)) / (exp(x) + exp(-x)), tanh(x)),
    (growth.hyperbolic, x / (1 + sinh(x) ** 2), x * sech(x) ** 2),
    (growth.logarithms_of_growth, log(2 * cosh(3 * x)), 3 * Abs(x) + log1p(expm1(-6 * Abs(x)) / 2) + log(2)),
    (growth.balanced, exp(x) * phi(x) * x, x * exp(x - x**2 / 2) / sqrt(2 * pi)),
    (growth.balanced, sinh(x) * sech(2 * x), exp(-Abs(x)) * tanh(x) * sigmoid(4 * Abs(x)) / sigmoid(2 * Abs(x))),
    (growth.balanced, exp(3 * x) * sigmoid(-x), exp(5 * x / 2 - Abs(x) / 2) * sigmoid(Abs(x))),
    (
        growth.balanced,
        expm1(x) * sech(x),
        -2 * exp(x / 2 - Abs(x) / 2) * expm1(-Abs(x)) * sign(x) * sigmoid(2 * Abs(x)),
    ),
    (growth.balanced, cosh(x) * sinh(x), cosh(x) * sinh(x)),
    (growth.balanced, sigmoid(x) * sigmoid(-x) * sech(x), sigmoid(x) * sigmoid(-x) * sech(x)),
    (rewrites.reciprocals, x / (2 + 3 * exp(-x)) ** 2, x * sigmoid(x - log(Rational(3, 2))) ** 2 / 4),
    (rewrites.half_tangents, x * expm1(2 * x) * sigmoid(-2 * x), x * tanh(x)),
    (rewrites.exponentials, exp(x) * sigmoid(3 - x) ** 2, exp(3) * sigmoid(x - 3) * sigmoid(3 - x)),
    (passes.pythagoras, 1 - sech(2 * x) ** 2, tanh(2 * x) ** 2),
]


def meaning(expression, at):
    """The value of an expression, at 60 digits; it may have functions of `codegen.sympy_functions`."""
    if expression == x:
        return at
    if expression.is_number:
        return mpmath.mpf(expression.evalf(60))
    values = [meaning(argument, at) for argument in expression.args]
    name = type(expression).__name__
    if name in MEANING:
        return MEANING[name](*values)
    return {"Add": mpmath.fsum, "Mul": mpmath.fprod, "Pow": lambda v: v[0] ** v[1], "Abs": lambda v: abs(v[0])}.get(
        name, lambda v: getattr(mpmath, name)(*v)
    )(values)


@pytest.mark.parametrize(("rewrite", "before", "after"), PASSES, ids=lambda part: getattr(part, "__name__", ""))
def test_each_pass_rewrites_what_it_says_and_keeps_the_value(rewrite, before, after):
    assert rewrite(before) == after
    assert rewrite(after) == after
    with mpmath.workdps(60):
        for at in (-80, -60, -3, -1e-7, 1e-7, 0.3, 4, 50):
            exact, value = meaning(before, mpmath.mpf(at)), meaning(after, mpmath.mpf(at))
            # 60 digits, of which 1 + tanh(-80) loses 70: held where digits are left.
            assert abs(exact - value) <= mpmath.mpf(10) ** -50 * (1 + abs(value))


@pytest.mark.parametrize("name", ["tanh_softplus", "tanhshrink"])
def test_functions_of_rewrites_differentiate_right(name):
    derivative = getattr(sympy_functions, name)(x).diff(x)
    with mpmath.workdps(40):
        for at in (-5, -0.5, 0.25, 3):
            exact = mpmath.diff(MEANING[name], at)
            assert abs(meaning(derivative, mpmath.mpf(at)) - exact) < 1e-15


def test_not_and_comparisons_of_inequality():
    assert TritonPrinter()._print(Not(And(x > 0, x < 1), evaluate=False)) == "(~((x > 0.0) & (x < 1.0)))"
    rewritten = passes.without_zero_sides(Piecewise((1, sympy.Ne(x, 0)), (0, True)))
    assert TritonPrinter()._print(rewritten) == "tl.where(((x > 0.0) | (x < 0.0)), 1.0, 0.0)"
