"""Functions of one tensor taken apart: what comes out is what torch computes, with torch's derivative."""

import math
import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from sympy import Rational
from torch import Tensor, nn
from torch.nn import functional as F

from actfit.codegen import operations
from actfit.codegen.fused import fuse
from actfit.codegen.names import ALIASES, by_name
from actfit.codegen.rewrites import rewritten
from actfit.codegen.traced import trace
from actfit.fitting.activations.functions import x as symbol
from actfit.fitting.activations.grammar import parse
from actfit.fitting.errors import InputError
from actfit.kernels.stock import STOCK, clamp_passes_at_ends
from tests.codegen.emitted import EPS, POINTS, UNITS, Made, emitted, expected
from tests.codegen.run import module


def check(function: Made, x: Tensor, folder: object, units: int = 64) -> None:
    """Both agree where torch's are finite, to so many units of float64 of numbers of that size, next to 1 at least."""
    finite = torch.isfinite(torch.stack(expected(function, x))).all(dim=0)
    for got, true in zip(emitted(function, x, folder), expected(function, x), strict=True):
        assert got.shape == true.shape
        assert got.dtype == true.dtype
        assert ((got - true).abs()[finite] <= units * EPS * (1 + true.abs()[finite])).all(), (got - true)[finite]
        assert finite.any()


@pytest.fixture(autouse=True)
def ends_of_clamp() -> Iterator[None]:
    """As `elementwise` sets them."""
    before = operations.CLAMP_PASSES.set(clamp_passes_at_ends())
    yield
    operations.CLAMP_PASSES.reset(before)


@pytest.mark.parametrize("passes", [False, True])
def test_the_derivative_of_clamp_at_its_ends(passes, tmp_path):
    """Either of torch's, whichever torch runs."""
    operations.CLAMP_PASSES.set(passes)
    y, derivative = emitted(lambda x: x.clamp(-1, 1), torch.tensor([-2.0, -1.0, 0.5, 1.0, 2.0, math.nan]), tmp_path)
    assert y[:-1].tolist() == [-1, -1, 0.5, 1, 1]
    assert derivative[:-1].tolist() == [0, passes, 1, passes, 0]
    assert torch.isnan(y[-1])


PARAMETERS = {"threshold": (0.3, 2.0)}


@pytest.mark.parametrize("name", STOCK)
def test_functions_of_the_catalogue_are_torchs_also_where_branches_meet(name, tmp_path):
    check(lambda x: STOCK[name](x, *PARAMETERS.get(name, ())), POINTS, tmp_path, UNITS.get(name, 64))


CALLS: dict[str, Made] = {
    "leaky_relu": lambda x: F.leaky_relu(x, 0.3),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, max_val=0.7),
    "softplus": lambda x: F.softplus(x, beta=2.5, threshold=100),
    "elu": lambda x: F.elu(x, alpha=0.4),
    "celu": lambda x: F.celu(x, 2.0),
    "hardshrink": lambda x: F.hardshrink(x, 0.3),
    "softshrink": lambda x: F.softshrink(x, lambd=0.3),
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "nn": nn.Sequential(nn.Softplus(), nn.Tanh(), nn.Threshold(0.1, 2.0), nn.LogSigmoid()),
    "operators": lambda x: -(2 - x) / (1.5 + x * x) + 3 / (2 + x**2) - 2.0**x * 0.25 + (+x) ** 3.0,
    "methods": lambda x: x.sigmoid() * x.pow(3) + x.square().add(1, alpha=2).sqrt().neg() - x.mul(2).sub(x, alpha=0.5),
    "trigonometry": lambda x: torch.sin(2 * x) ** 2 / 2 + x.cos() + torch.atan(x) + torch.arctan(x) + (x / 20).tan(),
    "quotients": lambda x: (x**3 + x) / (x * x + 1) - torch.exp(-x * x) / (2 + x.cos()) ** 2 / (1 + x * x),
    "dropout": lambda x: F.dropout(x, 0.5, training=False) * F.alpha_dropout(x, 0.0) + nn.Dropout().eval()(x),
    "hyperbolic": lambda x: torch.sinh(x / 8) + torch.cosh(x / 8) + x.tanh(),
    "logarithms": lambda x: torch.log(x * x + 1) + torch.log1p(x**2) + (x * x + 2).log2() + (x * x + 3).log10(),
    "roots": lambda x: (
        torch.sqrt(1 + x * x) + torch.rsqrt(1 + x * x) + torch.reciprocal(2 + x * x) + (1 + x * x) ** 0.3
    ),
    "error functions": lambda x: torch.erf(x) + torch.erfc(x / 4) + torch.special.ndtr(x) + torch.special.expit(x),
    "abs": lambda x: x.abs() + torch.abs(x - 1) * torch.absolute(x + 1),
    "abs of what may be NaN": lambda x: torch.abs(torch.log(x + 1)),
    "sign": lambda x: x * torch.sign(x - 0.3) + x.sign(),
    "clamp": lambda x: x.clamp(-1, 1) + torch.clamp(x, min=-0.5) + x.clip(max=0.5) * x.clamp_min(0) * x.clamp_max(3),
    "maximum": lambda x: torch.maximum(x, torch.tensor(0.0, dtype=torch.float64)) + torch.minimum(x, x * x),
    "max and min": lambda x: x.max(-x) + torch.min(x, torch.tensor(0.5, dtype=torch.float64)),
    "logaddexp": lambda x: torch.logaddexp(x, -x),
    "where": lambda x: torch.where(x > 0, x, 0.1 * x) + torch.where(x <= 1, x, 2 * x - 1).where(x != 3, x * 0),
    "conditions": lambda x: torch.where((x > -1) & (x < 1) | ~(x >= -2) & (x == x), x * x, x),
    "masked_fill": lambda x: x.masked_fill(torch.logical_and(x.gt(0), x.ne(1)), 2.0) * x,
    "conditions as numbers": lambda x: (x > 0).to(x.dtype) * x**2 + x * (x <= -1),
    "numbers of numpy": lambda x: np.float32(0.1) * x + np.float64(0.1) * x,
    "like x": lambda x: torch.where(x > 0.5, torch.ones_like(x), torch.full_like(x, 0.5)) + torch.zeros_like(x) + x,
    "kinks inside kinks": lambda x: F.relu(F.hardtanh(x.abs() - 1)) + torch.maximum(F.relu(x), F.relu(-x)),
}


@pytest.mark.parametrize("name", CALLS)
def test_operations_are_torchs(name, tmp_path):
    check(CALLS[name], POINTS, tmp_path, 512)


# Quotients of what is large, whose derivatives are not; tails, and digits that a product with a sum has.
LARGE: dict[str, tuple[Made, list[float]]] = {
    "tanh": (lambda x: (torch.exp(x) - torch.exp(-x)) / (torch.exp(x) + torch.exp(-x)), [3, 44.5, 60, -50, 80, -80]),
    "sigmoid of 2x": (lambda x: torch.exp(x) / (torch.exp(x) + torch.exp(-x)), [3, 44.5, 60, -50, 80, -80]),
    "sinh over cosh": (lambda x: torch.sinh(x) / torch.cosh(x), [3, 44.5, 60, -50, 80, -80]),
    "rational": (lambda x: (x**3 + x) / (x**2 + 1), [3, 5e9, -5e9, 1e12]),
    "reciprocal": (lambda x: 1 / (torch.exp(x) + torch.exp(-x)), [3, 44.5, 60, -50, 80, -80]),
    "sum less a number": (lambda x: (x - 3) / 0.01, [3.0001, 3, 2.9999]),
    "number times a sum": (lambda x: torch.sin((x - 3) * 1e5), [3.0001, 3, 2.9999]),
}


@pytest.mark.parametrize("name", LARGE)
def test_what_torch_computes_is_not_lost_on_the_way(name, tmp_path):
    """In float32, to the units that torch's own float32 has."""
    function, points = LARGE[name]
    x = torch.tensor(points)
    wide = x.double()
    for got, true in zip(emitted(function, x, tmp_path), expected(function, wide), strict=True):
        assert ((got - true).abs() <= 16 * 2.0**-24 * (1 + true.abs())).all(), (got, true)


def test_tails_of_error_functions(tmp_path):
    x = torch.tensor([-6.0, -4.0, -1.0, 1.0, 4.0, 6.0], dtype=torch.float64)
    for function in (torch.erfc, lambda x: torch.erfc(-x), lambda x: 2 * torch.erf(-x), lambda x: torch.erfc(1 - x)):
        for got, true in zip(emitted(function, x, tmp_path), expected(function, x), strict=True):
            assert ((got - true).abs() <= 64 * EPS * true.abs()).all(), (got, true)
    assert fuse(lambda x: x * torch.erfc(torch.full_like(x, 0.5)), "f").values[0].coeff(symbol).evalf() < 1


def test_nan_is_not_hidden_by_what_is_left_out(tmp_path):
    x = torch.tensor([math.nan, 2.0], dtype=torch.float64)
    for function in (lambda x: x - x, lambda x: 0 * x, lambda x: x * 0.0 + 1, lambda x: x / x, lambda x: (x - x).exp()):
        y, derivative = emitted(function, x, tmp_path)
        assert torch.isnan(y).tolist() == [True, False]
        assert torch.equal(y[1], function(x)[1])
        assert derivative[1] == 0
    y, _ = emitted(lambda x: torch.ones_like(x) * 2 + torch.full_like(x, 1), x, tmp_path)
    assert y.tolist() == [3, 3]


def test_aliases_lead_to_operations():
    assert {by_name(alias) for alias in ALIASES} <= set(operations.OPERATIONS)


def test_a_function_of_numbers_too(tmp_path):
    def f(x, beta, shape="plain", *, twice=False):
        y = x * torch.sigmoid(beta * x) if shape == "plain" else x
        return 2 * y if twice else y

    got = emitted(f, POINTS, tmp_path, 1.5, twice=True)
    torch.testing.assert_close(got, expected(f, POINTS, 1.5, twice=True), rtol=16 * EPS, atol=16 * EPS)


def test_numbers_are_taken_exactly():
    (expression,) = trace(lambda x: 0.1 * x).expressions
    assert abs(expression.coeff(symbol) - Rational(0.1)) < 1e-30
    assert trace(lambda x: x**2.0).expressions == (symbol**2,)
    assert trace(lambda x: 0.375 * x).expressions == (3 * symbol / 8,)


# What is written by hand in ways that lose digits or overflow -> what is computed.
REWRITES = [
    ("(1 + tanh(x))/2", "sigmoid(2*x)"),
    ("3 - 3*tanh(x)", "6*sigmoid(-2*x)"),
    ("x*(1 + erf(x/sqrt(2)))/2", "x*Phi(x)"),
    ("1 - sigmoid(x)", "sigmoid(-x)"),
    ("x - x*Phi(x)", "x*Phi(-x)"),
    ("3*exp(x) - 3 + x", "x + 3*expm1(x)"),
    ("x/(1 + exp(-x))", "x*sigmoid(x)"),
    ("1/(1 + exp(x))**2", "sigmoid(-x)**2"),
    ("exp(x)/(1 + exp(x))", "sigmoid(x)"),
    ("log(1/(1 + exp(-x)))", "-softplus(-x)"),
    ("2 - tanh(x)", "2 - tanh(x)"),
    ("exp(x) + 1", "exp(x) + 1"),
]


@pytest.mark.parametrize(("written", "computed"), REWRITES)
def test_what_is_written_by_hand_is_made_stable(written, computed):
    assert rewritten(parse(written)) == parse(computed)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: 1 - (1 - x), "x"),  # differences are taken apart
        (lambda x: (x - 3) * 100, "100*(x - 3)"),  # numbers are not multiplied in
        (lambda x: torch.exp(x - 1) / (1 + torch.exp(x - 1)), "sigmoid(x - 1)"),
        (lambda x: torch.log(1 - torch.sigmoid(x)), "-softplus(x)"),
        (lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))), "x*Phi(x)"),
        (lambda x: x * 0.5 * (1.0 + (x * 2**-0.5).erf()), "x*Phi(x)"),
    ],
)
def test_what_is_traced_is_made_stable(function, text):
    assert [str(value) for value in fuse(function, "f").values] == [text]


def test_nan_is_not_hidden_by_a_branch(tmp_path):
    x = torch.tensor([math.nan, -1.0, 1.0], dtype=torch.float64)
    for function in (
        torch.relu,
        lambda x: torch.where(x > 0, 1.0, 0.0).to(x.dtype),
        lambda x: x.clamp(-1, 1),
        torch.sign,
    ):
        y, _ = emitted(function, x, tmp_path)
        assert torch.isnan(y).tolist() == [True, False, False]
    for function in (
        lambda x: F.relu(torch.log(x)),
        lambda x: F.softshrink(torch.log(x)),
        lambda x: x.log().clamp(-1, 1),
    ):
        y, _ = emitted(function, x, tmp_path)  # the logarithm of -1 is NaN
        assert torch.isnan(y).tolist() == [True, True, False]


def test_several_results_share_what_they_have_in_common(tmp_path):
    fused = fuse(lambda x: (x.sigmoid(), x * x.sigmoid(), 2 - x, torch.ones_like(x)), "f")
    assert (fused.count, fused.several) == (4, True)
    text = fused.text("torch", "float32")
    assert text.split("def element")[1].count("torch.sigmoid(x)") == 1
    *_, derivative, zero = results = module(text, tmp_path).element(POINTS)
    assert len(results) == 8
    assert (derivative == -1).all()
    assert (zero == 0).all()
    assert {result.shape for result in results} == {POINTS.shape}


def test_the_key_is_of_the_formulas():
    keys = {fuse(lambda x, a=a: x * a, "f").key for a in (1, 2, 0.1, 0.1)}
    assert len(keys) == 3
    assert fuse(lambda x: x * 2, "<lambda>").key.startswith("function-")


def test_targets_and_dtypes_are_checked():
    fused = fuse(torch.relu, "f")
    for what, arguments in (("target", ("cuda", "float32")), ("dtype", ("triton", "float64"))):
        with pytest.raises(
            InputError, match=rf"^{what} must be one of .*, got '{re.escape(arguments[what == 'dtype'])}'"
        ):
            fused.text(*arguments)
