"""Functions that cannot be taken apart are refused by what is in the way, in one line."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actfit.codegen.fused import fuse
from actfit.fitting.errors import InputError
from tests.kernels.programs import Doubled


def test_what_backward_would_not_go_through_is_refused():
    """Operations while torch records nothing: their derivative is not that of the formula."""

    def constant(x):
        with torch.no_grad():
            s = torch.sigmoid(x)
        return x * s

    def sum_of(x):
        with torch.inference_mode():
            return x + 1

    for function, name in ((constant, "sigmoid"), (Doubled.apply, "mul"), (sum_of, "add")):
        with pytest.raises(InputError, match=rf"backward goes through, got {name} within torch.no_grad\(\) or a"):
            fuse(function, "f", recorded=torch.is_grad_enabled)
    assert fuse(lambda x: x * x, "f", recorded=torch.is_grad_enabled).count == 1


def iadd(x: Tensor) -> Tensor:
    x += 1
    return x


def branch(x: Tensor) -> Tensor:
    return x if x > 0 else -x


VALUES, KNOWN = "must not look at the values of its tensor, got ", "must be one that is known and element-wise, got "
REDUCES, RANDOM = "takes several elements together; use it outside", "draws random numbers; use it outside"
REFUSALS = {
    "branch": (branch, VALUES + r"a branch of Python .*; use torch.where"),
    "float": (lambda x: math.tanh(x), VALUES + "a Python number made of it; use torch's function"),
    "item": (lambda x: x.item() * x, VALUES + "a Python number"),
    "loop": (lambda x: list(x), VALUES + "a loop"),
    "dtype": (lambda x: x if x.dtype == torch.float32 else 2 * x, "must not branch on the dtype"),
    "sum": (lambda x: x - torch.sum(x), "got sum, which " + REDUCES),
    "max": (lambda x: x - x.max(), "got max, which " + REDUCES),
    "dropout": (lambda x: F.dropout(x), "got dropout, which " + RANDOM),
    "rand_like": (lambda x: x * torch.rand_like(x), "got rand_like, which " + RANDOM),
    "in place": (lambda x: x.mul_(2), "must not change its tensor in place, got mul_; write mul"),
    "inplace": (lambda x: F.relu(x, inplace=True), "inplace must be False, got True"),
    "+=": (iadd, r"in place, got an augmented assignment \(iadd\)"),
    "out": (lambda x: torch.add(x, 1, out=x), "add must be called with arguments that are known.*'out'"),
    "tensor": (lambda x: x * torch.ones(3), r"an operand must be .*, got a tensor of shape \(3,\); keep other"),
    "parameter": (
        lambda x: x * nn.Parameter(torch.tensor(1.0)),
        "must be a number, got a tensor that wants a gradient",
    ),
    "infinity": (lambda x: x * math.inf, "an operand must be finite, got inf"),
    "a very large number": (lambda x: x + 10**400, "an operand must be finite, got a larger whole number"),
    "exp of a large number": (
        lambda x: x * torch.exp(torch.full_like(x, 1e3)),
        "numbers must be 0 or from .*, got 1.97e.434",
    ),
    "cat": (lambda x: torch.cat([x, x]), KNOWN + "cat"),
    "floor division": (lambda x: torch.div(x, 2, rounding_mode="floor"), "rounding_mode must be left out"),
    "shape": (lambda x: x * x.shape[0], r"known element-wise operations alone, got \.shape; keep it outside"),
    "detach": (lambda x: x.detach(), r"got \.detach"),
    "a function of numpy": (lambda x: np.exp(x), "torch's functions and methods of its tensor alone, got: .*ufuncs"),
    "a method by its class": (lambda x: torch.Tensor.tanh(x), "methods of its tensor alone, got: descriptor 'tanh'"),
    "a limit made from x": (
        lambda x: torch.clamp(x, min=x * 0.5),
        "min and max must be numbers, got what is made from x; use torch.maximum",
    ),
    "a slip": (lambda x: x.sigmiod(), r"got \.sigmiod; did you mean sigmoid\?"),
    "half": (lambda x: x.half(), "a cast must be to float32 or to the dtype .*, got half; leave it out"),
    "zero": (lambda x: x / 0, "a divisor must not be 0"),
    "power": (lambda x: x**x, "a power must have a number as its exponent, or a positive number as its base"),
    "large power": (lambda x: x**65, "an exponent must be from -64 to 64, got 65; use exp"),
    "clamp": (lambda x: x.clamp(1, -1), "min must be at most max, got 1 and -1"),
    "threshold": (lambda x: F.softplus(x, threshold=5), "threshold must be at least 20"),
    "approximate": (lambda x: F.gelu(x, approximate="cubic"), "approximate must be 'none' or 'tanh', got 'cubic'"),
    "a rule of the catalogue": (lambda x: F.softplus(x, beta=-1), "beta must be positive"),
    "condition": (lambda x: torch.where(x, x, 0), "where must be given conditions such as x > 0, got numbers"),
    "no condition on x": (lambda x: torch.where(x - x > 0, x, 0), "a condition must depend on x"),
    "arithmetic of conditions": (lambda x: (x > 0) * 2.0, r"arithmetic must be done on numbers, got mul of conditions"),
    "a condition as result": (lambda x: x > 0, "a result must be numbers, got a condition"),
    "no result": (lambda x: (), "at least one result, got an empty tuple"),
    "not real": (lambda x: torch.sqrt(torch.zeros_like(x) - 1) * x, "a result must be a real, finite formula"),
    "too large": (lambda x: [x := x * x.sigmoid() for _ in range(20)][-1], "a formula must have at most 2000"),
    "too deep": (lambda x: [x := x.sin() for _ in range(99)][-1], "60 inside each other"),
    "numbers beyond float32": (lambda x: x * 1e30 * 1e30, r"numbers must be 0 or from 1.2e-38 to 3.4e\+38"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_say_what_and_why_in_one_line(name):
    function, message = REFUSALS[name]
    with pytest.raises(InputError, match=message) as caught:
        fuse(function, "f")
    assert "\n" not in str(caught.value)


def test_an_error_of_the_function_itself_is_its_own():
    with pytest.raises(ZeroDivisionError):
        fuse(lambda x: x * (1 / 0), "f")
    with pytest.raises(TypeError, match="unsupported operand"):
        fuse(lambda x: x * (1 + "a"), "f")
