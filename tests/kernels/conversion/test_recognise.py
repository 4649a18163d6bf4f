"""What `convert` takes for an activation: torch's modules and functions, and modules recognised numerically."""

import math
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kernels
from kernels import convert
from kernels.conversion import recognise
from kernels.conversion.function import Function
from kernels.methods.functions import FUNCTIONS
from kernels.modules import Activation
from kernels.stock import STOCK
from tests.kernels.conversion.models import Formula, mlp

OF_TORCH = [
    (nn.ReLU(), Function("relu")),
    (nn.ReLU(inplace=True), Function("relu")),
    (nn.LeakyReLU(0.2), Function("leaky_relu", {"negative_slope": 0.2})),
    (nn.ReLU6(), Function("relu6")),
    (nn.Threshold(0.1, 20.0), Function("threshold", {"threshold": 0.1, "value": 20.0})),
    (nn.Hardtanh(-2.0, 3.0), Function("hardtanh", {"min_val": -2.0, "max_val": 3.0})),
    (nn.Hardsigmoid(), Function("hardsigmoid")),
    (nn.Hardshrink(0.3), Function("hardshrink", {"lambd": 0.3})),
    (nn.Softshrink(), Function("softshrink", {"lambd": 0.5})),
    (nn.Hardswish(), Function("hardswish")),
    (nn.Sigmoid(), Function("sigmoid")),
    (nn.Tanh(), Function("tanh")),
    (nn.Softplus(2.0), Function("softplus", {"beta": 2.0})),
    (nn.Softsign(), Function("softsign")),
    (nn.LogSigmoid(), Function("logsigmoid")),
    (nn.Tanhshrink(), Function("tanhshrink")),
    (nn.ELU(0.5), Function("elu", {"alpha": 0.5})),
    (nn.CELU(1.5), Function("celu", {"alpha": 1.5})),
    (nn.SELU(), Function("selu")),
    (nn.GELU(), Function("gelu")),
    (nn.GELU("tanh"), Function("gelu_tanh")),
    (nn.SiLU(), Function("silu")),
    (nn.Mish(), Function("mish")),
]


@pytest.mark.parametrize(("module", "expected"), OF_TORCH, ids=lambda value: repr(value)[:30])
def test_torchs_modules_are_known_with_their_parameters(module: nn.Module, expected: Function) -> None:
    assert recognise.module(module) == expected


def test_every_module_of_ours_stands_for_one_of_torchs() -> None:
    names = (getattr(kernels, name) for name in kernels.__all__)
    ours = {kind for kind in names if isinstance(kind, type) and issubclass(kind, Activation)}
    assert {type(module) for module, _ in OF_TORCH} == set(recognise.REPLACEMENTS)
    assert ours - set(recognise.REPLACEMENTS.values()) == {kernels.ReLU2, kernels.QuickGELU}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_modules_of_ones_own_are_known_by_value(function: str) -> None:
    params = FUNCTIONS[function].parameters
    recognised = recognise.module(Formula(lambda x: STOCK[function](x, *params.values())))
    same = {"celu": "elu"}  # by their defaults
    assert recognised == Function(same.get(function, function), params)


WRITTEN_OUT = {
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608 * x * (1 + 0.044715 * x * x))),
    "silu": lambda x: x.mul(x.sigmoid()),
    "mish": lambda x: x * torch.tanh(F.softplus(x)),
    "quick_gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
    "relu2": lambda x: x.clamp(min=0) ** 2,
    "relu": lambda x: x.clamp_(min=0),
    "hardswish": lambda x: x * F.relu6(x + 3) / 6,
    "softsign": lambda x: x / (1 + abs(x)),
    "elu": lambda x: torch.where(x > 0, x, torch.expm1(x)),
    "softplus": lambda x: torch.log1p(torch.exp(x)),  # overflows where the function does not
}


@pytest.mark.parametrize("function", WRITTEN_OUT)
def test_formulas_written_out_are_known_by_value(function: str) -> None:
    recognised = recognise.module(Formula(WRITTEN_OUT[function]))
    assert isinstance(recognised, Function)
    assert recognised.name == function


class StraightThrough(nn.Module):
    """tanh forward, what hardtanh has backward."""

    def forward(self, x: Tensor) -> Tensor:
        hard = F.hardtanh(x)
        return hard + (torch.tanh(x) - hard).detach()


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x) if self.training else F.relu(x)


@pytest.mark.parametrize(
    "stranger",
    [
        StraightThrough(),
        Formula(lambda x: F.gelu(x).clamp(max=10)),
        Formula(lambda x: F.relu(x).clamp(max=300)),
        Formula(lambda x: F.gelu(x) + 1e-3 * F.relu(x - 15)),
        Formula(lambda x: F.gelu(x).clamp(-60000, 60000)),
        Formula(lambda x: F.gelu(x).clamp(max=torch.finfo(x.dtype).max)),
        Formula(lambda x: torch.nan_to_num(F.silu(x))),
        Formula(lambda x: F.silu(x).clamp(max=6e4) if x.dtype == torch.float16 else F.silu(x)),
        Formula(lambda x: F.gelu(x - x.mean(-1, keepdim=True)) if x.dim() == 3 else F.gelu(x)),
        Formula(lambda x: F.gelu(x) if x.dim() < 4 else F.gelu(x, approximate="tanh") * 1.1),
        Formula(lambda x: x * x),
        Formula(torch.sin),
    ],
)
def test_other_functions_are_left_alone_with_the_way_to_kernels_of_ones_own(stranger: nn.Module) -> None:
    assert "fitting.fewbit --expr" in recognise.module(stranger)


@pytest.mark.parametrize(
    "stranger",
    [
        nn.Identity(),
        nn.Dropout(),
        nn.Flatten(),
        Formula(lambda x: x.softmax(-1)),
        Formula(lambda x: x.sum()),
        Formula(lambda x: F.gelu(x).roll(1, 0)),
        Formula(lambda x: F.gelu(x) + torch.rand(1)),
        Formula(lambda x: x),
        Formula(lambda x: 1 / 0),
        Formula(lambda x: None),
        Formula(lambda x: x.conv2d()),
    ],
)
def test_what_is_no_activation_is_no_site(stranger: nn.Module) -> None:
    assert recognise.module(stranger) is None
    # A function that it calls, also by a lambda that it holds, is a site of its own.
    assert {site.name for site in convert(mlp(stranger), "fewbit").sites} <= {"1.gelu()"}


def test_another_function_in_evaluation_is_no_activation() -> None:
    assert recognise.module(Noisy()) is None
    assert [site.name for site in convert(mlp(Noisy()), "fewbit").sites] == ["1.gelu()", "1.relu()"]  # but it calls two


def test_recognising_leaves_no_trace() -> None:
    class Counting(nn.Module):
        seen: ClassVar[list[nn.Module]] = []

        def forward(self, x: Tensor) -> Tensor:
            type(self).seen.append(self)
            return F.silu(x) + 0 * torch.rand(1, dtype=x.dtype)

    act, state = Counting(), torch.get_rng_state()
    assert recognise.module(act) == Function("silu")
    assert act not in Counting.seen
    assert act.training
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("called", "expected"),
    [
        (F.gelu, Function("gelu")),
        (partial(F.gelu, approximate="tanh"), Function("gelu_tanh")),
        (partial(F.leaky_relu, negative_slope=0.2), Function("leaky_relu", {"negative_slope": 0.2})),
        (torch.tanh, Function("tanh")),
        (Tensor.relu, Function("relu")),
        (partial(F.silu, inplace=True), None),
        (partial(F.softplus, threshold=5), None),
        (partial(F.gelu, approximate="cubic"), None),
        (torch.sin, None),
        (print, None),
        ([], None),
    ],
)
def test_torchs_functions(called: Any, expected: Function | None) -> None:
    assert recognise.function(called) == expected
