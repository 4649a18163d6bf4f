"""What is emitted is finite where f and f' are, and where no rewrite makes it so it is refused."""

import numpy as np
import pytest
import torch

from actfit.codegen.__main__ import run
from actfit.codegen.emulation import Emulation
from actfit.codegen.module import primitives, with_primitives
from actfit.codegen.overflow import points, reach
from actfit.codegen.standalone import Request, emit
from actfit.codegen.subject import DTYPES, Subject, of_catalogue
from actfit.fitting.activations import from_expression, names
from actfit.fitting.activations.calculus import values
from actfit.fitting.activations.tape import Tape
from actfit.fitting.errors import InputError
from actfit.kernels.methods.forward_derivative import ForwardDerivative
from tests.codegen.run import module
from tests.codegen.test_emit import TORCH_DTYPES, run_triton

# Quotients and products whose parts overflow, or vanish, where the whole does neither.
MENDED = [
    "sinh(x)/cosh(2*x)",
    "tanh(sinh(x))",
    "x*exp(-x**2)",
    "sinh(x)/cosh(x)**2",
    "(exp(x) - exp(-x))/(exp(x) + exp(-x))",
    "x*exp(x)/(2 + exp(x))",
    "log(cosh(x))",
    "atan(sinh(x))",
    "atan(exp(x))",
    "exp(x)*phi(x)",
    "expm1(x)/cosh(x)",
    "x/(1 + x**2)",
    "exp(-exp(x))",
]
# What is NaN at an infinity as it is written, and has a limit there, or its derivative has.
ENDED = [
    "x/sqrt(1 + x**2)",
    "x*atan(x)/(1 + x**2)",
    "x*tanh(log(1 + exp(x)))",
    "x/(1 + abs(x))",
    "x*exp(-exp(x))",
    "sin(x)/x",
    "where(x > 1, x/(1 + x**2), x/2)",
]


def subject(expression):
    return Subject(from_expression(expression), (), {})


def text(expression, dtype, target):
    return emit(Request(subject(expression), ForwardDerivative(), dtype, ("python",)), target)


def gradients(expression, dtype, target, x, folder):
    """f' at x, by running the emitted module."""
    emitted = module(text(expression, "float32" if dtype == "float64" else dtype, target), folder)
    if target == "torch":
        return emitted.backward_pass(torch.ones_like(x), emitted.forward_pass(x)[1])
    with np.errstate(all="ignore"):
        return run_triton(emitted, x)[2]


@pytest.mark.slow
@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("target", ["triton", "torch"])
@pytest.mark.parametrize("expression", MENDED)
def test_the_derivative_is_finite_and_right_where_it_is_finite(expression, target, tmp_path):
    activation = from_expression(expression)
    for dtype in ("float32", "float16") if target == "triton" else ("float32", "float16", "bfloat16", "float64"):
        x = points("float16")  # up to the largest of them
        x = x[: len(x) // 8 * 8] if target == "triton" else x
        given = torch.from_numpy(x).to(getattr(torch, dtype))
        exact = values(Tape(activation.d1_expression), given.double().numpy())
        got = gradients(expression, dtype, target, given, tmp_path).double().numpy()
        # 2**-8 is bfloat16's rounding; float32 loses at most 2**-15 by an exponent of 100 rounded to 24 bits, and where
        # two terms of size 2 cancel, as for expm1(x)/cosh(x), four roundings of each.
        rounding = {"bfloat16": 2.0**-8, "float16": 2.0**-11}.get(dtype, 0.0) + 2.0**-15
        np.testing.assert_allclose(got, exact, rtol=rounding, atol=8 * 2.0**-24)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("target", ["triton", "torch"])
@pytest.mark.parametrize("expression", [*MENDED, *ENDED])
def test_at_the_infinities_are_the_limits(expression, target, tmp_path):
    activation = from_expression(expression)
    x = torch.tensor([-np.inf, np.inf, np.nan, 0.5, 1.0, 2.0, 3.0, 4.0])
    for dtype in ("float32", "bfloat16"):
        emitted = module(text(expression, dtype, target), tmp_path)
        given = x.to(getattr(torch, dtype))
        if target == "torch":
            y, saved = emitted.forward_pass(given)
            dx = emitted.backward_pass(torch.ones_like(given), saved)
        else:
            with np.errstate(all="ignore"):
                y, _, dx = run_triton(emitted, given)
        for got, limits in ((y, activation.limits), (dx, activation.derivative_limits)):
            for value, limit in zip(got.tolist(), (limits.left, limits.right), strict=False):
                if np.isfinite(limit):
                    assert value == pytest.approx(limit, rel=2.0**-8, abs=2.0**-24)
            assert torch.isfinite(got[3:]).all()
        assert torch.isnan(y[2])


def test_a_quotient_that_vanishes_too_fast_is_refused():
    with pytest.raises(InputError, match="must not vanish so fast where it is 0/0"):
        _ = subject("(exp(x**30)-1)/x").forward


@pytest.mark.slow
@pytest.mark.parametrize("target", ["triton", "torch"])
@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("exp(x**2)*erfc(x)", "must not overflow on the way to f, got inf for 0.05906 at x = 9.5 in exp(x**2)*erfc(x)"),
        ("x/(1 + exp(x) + exp(2*x))", "must not overflow on the way to f', got -inf for -3.213e-37 at x = 44.25"),
        ("softplus(x)*exp(-x)", "must not overflow on the way to f, got inf for 1 at x = -88.75"),
        (
            "1e30*tanh(1e30*x)",
            "numbers must be 0 or from 1.2e-38 to 3.4e+38 in size, as float32 has them, got 1.00e+60",
        ),
        ("1e-300*x", "numbers must be 0 or from 1.2e-38 to 3.4e+38 in size, as float32 has them, got 1.00e-300"),
    ],
)
def test_what_no_rewrite_mends_is_refused(expression, message, target, capsys):
    words = ["emit", "--expr", expression, "--method", "forward-ad", "--target", target]
    assert run(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("expression", ["exp(x/9)*x", "exp(50*x)", "x**5", "1e30*x", "cosh(x)", "sin(x)", "tan(x)"])
def test_what_overflows_itself_is_no_fault(expression):
    for dtype in DTYPES:
        assert "overflows on the way" not in text(expression, dtype, "torch")


@pytest.mark.parametrize("expression", ["x/sqrt(1 + x**2)", "log(1 + x**2)"])
def test_far_out_the_header_says_how_far(expression):
    assert "For |x| below 1.845e+19: from there on float32 overflows on the way." in text(
        expression, "float32", "torch"
    )
    assert "For |x|" not in text(expression, "float16", "torch")  # whose largest is 65504


@pytest.mark.parametrize("name", names())
def test_the_catalogue_reaches_all_numbers_or_no_nan(name):
    """What is shipped, with its parameters as arguments: no value within float16's range is lost."""
    for dtype in DTYPES:
        emit(Request(of_catalogue(name), ForwardDerivative(), dtype, ("python",)), "triton")


@pytest.mark.slow
@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ["gelu", "mish", "gelu_tanh", "elu", "hardswish", "softsign"])
def test_the_emulation_does_what_triton_does(name, dtype, tmp_path):
    from actfit.codegen import elements

    asked = Request(of_catalogue(name), ForwardDerivative(), dtype, ("python",))
    x = points("float16")
    x = x[: len(x) // 8 * 8]
    functions = [elements.forward(asked.subject, "triton"), elements.derivative(asked.subject, "triton")]
    emulation = Emulation({function.name: function for function in with_primitives(functions, dtype, "triton")})
    params = tuple(asked.subject.activation.params.values())
    given = torch.from_numpy(x).to(TORCH_DTYPES[dtype])
    with np.errstate(all="ignore"):
        y, _, dx = run_triton(module(emit(asked, "triton"), tmp_path), given, params)
    for function, got in (("forward", y), ("derivative", dx)):
        want = torch.from_numpy(emulation.run(function, given.double().numpy(), params).copy()).to(given.dtype)
        # Triton's interpreter and this take exp2 from different libraries: a unit of float32 each, times 8 operations.
        torch.testing.assert_close(got, want, rtol=2.0**-20 if dtype == "float32" else 2.0**-10, atol=2.0**-24)


def test_the_emulation_sees_what_is_lost():
    (sech,) = primitives(["sech"], "float32", "torch")
    emulation = Emulation({"sech": sech})
    got = emulation.run("sech", np.array([0.0, 5.0, 100.0]))
    assert got.dtype == np.float32
    assert emulation.lost.tolist() == [False, False, True]


def test_a_text_of_no_printer_is_not_run():
    from actfit.codegen.function import Function

    for line in ("return __import__('os').getpid()", "return x.real", "return [x]", "return torch.load(x)"):
        with pytest.raises(ValueError, match="emitted text must"):
            Emulation({"f": Function("f", ("x",), "", (line,))}).run("f", np.zeros(1))


def test_agreement_is_what_tells():
    """The check can fail: a derivative that is 2 % off where a value overflows is seen, and reach is then finite."""
    from dataclasses import replace

    from actfit.codegen import elements

    asked = subject("x/sqrt(1 + x**2) + 0.5*x")
    good = elements.derivative(asked, "torch")
    assert reach(asked, "float16", "torch", [good]) == np.inf
    wrong = replace(good, body=("return 1.0 / (1.0 + torch.exp(x * x))",))  # right at 0 alone
    with pytest.raises(InputError, match="got 0 for"):
        reach(asked, "float16", "torch", [wrong])


@pytest.mark.slow
@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("target", ["triton", "torch"])
@pytest.mark.parametrize(
    "expression", ["sin(x)/x", "(1 - cos(x))/x", "tanh(x)/x", "x/sinh(x)", "1/tanh(x) - 1/x", "sin(2*x - 2)/(x - 1)"]
)
def test_removable_singularities_are_emitted(expression, target, tmp_path):
    activation = from_expression(expression)
    x = np.float32(np.concatenate([np.linspace(-4, 4, 161), [1e-30, -1e-9, 1e-4, 0.0, 1.0, 1 + 2.0**-20, -1e-3]]))
    exact = values(Tape(activation.d1_expression), x.astype(np.float64))
    got = gradients(expression, "float32", target, torch.from_numpy(x), tmp_path).double().numpy()
    # The plain spelling of f' begins where |t| is a quarter of the radius of convergence, 0.39 for tanh(x)/x: 1/t**2
    # magnifies the rounding of its parts, some six of them, 7 times.
    np.testing.assert_allclose(got, exact, rtol=0, atol=8 * 7 * 2.0**-24)
