"""Functions that save f'(x) by groups, as they have no table: f' is unbounded, or parameters are not a table's."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kernels.functional as functional
from kernels import KernelError, convert, saved_bytes
from kernels.approx_backprop import Compressed
from kernels.approx_backprop.layers import activated
from kernels.conversion.function import DEFAULTS
from kernels.engine.elements import torch_elements
from kernels.methods.functions import FUNCTIONS
from kernels.stock import STOCK

METHOD = "approx-backprop"
pytestmark = pytest.mark.usefixtures("afresh", "one_thread")


class Squared(nn.Module):
    """Squared ReLU, as in transformers and Primer."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.square(F.relu(x))


class Block(nn.Module):
    """An MLP of Nemotron's kind, on numbers of any size."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.act, self.down = nn.Linear(32, 64), act, nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))


def input_gradient(net: nn.Module, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    y = net(x)
    (dx,) = torch.autograd.grad(y, x, torch.randn(y.shape, generator=torch.Generator().manual_seed(1)))
    return dx


def squared_of(name: str) -> nn.Module:
    if name == "own":
        return Squared()
    activations = pytest.importorskip("transformers", reason="transformers is not installed").activations
    return activations.ReLUSquaredActivation() if name == "module" else activations.ACT2FN["relu2"]


@pytest.mark.parametrize("name", ["own", "module", "ACT2FN"])
@pytest.mark.parametrize("size", [1e-3, 1, 10, 1000])
@pytest.mark.parametrize("bits", [8, 4])
def test_the_square_of_a_relu_at_any_scale(name: str, size: float, bits: int) -> None:
    net, x = Block(squared_of(name)), torch.randn(256, 32) * size
    net.up.bias.data.zero_()  # so that all scales with x
    exact = input_gradient(net, x)
    report = convert(net, METHOD, bits=bits, inputs=x)
    assert {site.name: site.now for site in report.converted}["act"] == f"approx-backprop, {bits} bits, group"
    error = float((input_gradient(net, x) - exact).norm() / exact.norm())
    # f' = 2 max(u, 0) is off by step / sqrt(12) where u > 0, of a group's range of three deviations of u at most, and
    # |f'| is that of 2u there: 3 / (2^bits - 1) / sqrt(12), twice that for groups with more. dx is linear in f'.
    assert error <= 2 * 3 / (2**bits - 1) / 12**0.5
    report.revert()
    assert torch.equal(input_gradient(net, x), exact)


def test_few_bit_tables_are_refused_where_the_derivative_has_no_bound() -> None:
    assert [name for name in FUNCTIONS if not FUNCTIONS[name].bounded_derivative] == ["relu2"]
    x = torch.randn(8, requires_grad=True)
    for bits in (None, 1, 4):
        with pytest.raises(KernelError, match="method='fewbit' must have a function whose f' has a bound, got relu2"):
            functional.relu2(x, method="fewbit", bits=bits)
    net = nn.Sequential(nn.Linear(4, 4), Squared(), nn.Linear(4, 4))
    (left,) = convert(net, "fewbit", bits=4).left
    assert "must have a function whose f' has a bound" in left.reason
    (made,) = convert(net, inputs=torch.randn(64, 4)).converted
    assert made.now in ("invact", "forward-ad")  # f' = 2 sqrt(y) is exact


@pytest.mark.parametrize("function", [name for name in FUNCTIONS if name not in ("relu", "leaky_relu")])
@pytest.mark.parametrize("bits", [3, 8])
def test_every_function_is_off_by_half_a_step(function: str, bits: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (3 * torch.randn(130, 6, generator=generator, dtype=torch.float64)).requires_grad_()
    params = DEFAULTS[function]
    y = activated(function, params, x, Compressed(bits=bits, scheme="group"))
    (got,) = torch.autograd.grad(y.sum(), x)
    exact = torch_elements(function).derivative(x.detach(), list(params.values()))
    exact_groups, groups = exact.split(44), got.split(44)  # 130 tokens of a feature are three groups
    for group, exact_group in zip(groups, exact_groups, strict=True):
        low, high = exact_group.amin(0), exact_group.amax(0)
        # Half a step over the range, of which bfloat16 widens the ends by 2^-7 at most, and the step, too.
        step = (high - low + 2**-7 * (low.abs() + high.abs())) / (2**bits - 1) * (1 + 2**-7)
        assert ((group - exact_group).abs() <= step / 2 + 1e-12).all()
    stock = STOCK[function](x, *params.values())
    assert torch.allclose(y, stock, rtol=1e-6, atol=1e-6)  # our kernels compute in another order than torch


def test_bits_asked_for_are_given() -> None:
    """With parameters that no table has, f' is saved by groups."""
    made = {
        "mish": (nn.Mish(), {4: "fewbit, 4 bits", 5: "fewbit, 5 bits"}),
        "gelu": (nn.GELU(), {4: "fewbit, 4 bits", 8: "fewbit, 8 bits"}),
        "elu": (nn.ELU(0.5), {4: "approx-backprop, 4 bits, group"}),
        "relu6": (nn.ReLU6(), {4: "fewbit, 1 bit", 8: "fewbit, 1 bit"}),
        "hardtanh": (nn.Hardtanh(-2, 3), {4: "approx-backprop, 4 bits, group"}),
    }
    for module, by_bits in made.values():
        for bits, now in by_bits.items():
            net = nn.Sequential(nn.Linear(8, 8), copy.deepcopy(module))
            assert convert(net, METHOD, bits=bits).converted[0].now == now
    net = nn.Sequential(nn.Linear(8, 8), nn.ELU(0.5))
    assert "is not exact" in convert(net, METHOD, scheme="fused").left[0].reason


class Called(nn.Module):
    """Functions called in a forward, one of them with parameters that no table has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.mish(F.elu(self.linear(x), alpha=0.3))


LAYOUTS = {
    "a number": lambda x: x[0, 0, 0, 0],
    "a vector": lambda x: x[0, 0, 0],
    "rows": lambda x: x[0],
    "images": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "strides": lambda x: x.transpose(1, 3),
    "expanded": lambda x: x[:, :1].expand(-1, 3, -1, -1),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str) -> None:
    x = LAYOUTS[name](torch.randn(2, 3, 70, 5))
    leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = activated("softsign", {}, leaf * 1, Compressed(bits=8, scheme="group"))
    (dx,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
    assert y.shape == x.shape
    assert y.stride() == F.softsign(leaf * 1).stride()
    assert (dx - 1 / (1 + x.abs()) ** 2).abs().max() <= 1 / 255  # f' lies between 0 and 1


@pytest.mark.parametrize("bits", [4, 8])
def test_a_call_with_parameters_of_its_own_is_served(bits: int) -> None:
    net, x = Called(), torch.randn(96, 8)
    report = convert(net, METHOD, bits=bits, inputs=x)
    assert {site.name: site.now for site in report.converted} == {
        "elu()": f"approx-backprop, {bits} bits, group",
        "mish()": f"fewbit, {bits} bits",
        "linear": f"approx-backprop, {bits} bits, robust",
    }
    assert not report.left


@pytest.mark.slow
def test_called_and_compiled() -> None:
    x = torch.randn(96, 8)
    net, stock = Called(), Called()
    report = convert(net, METHOD, bits=6, inputs=x)
    assert sorted(site.now for site in report.converted) == [
        "approx-backprop, 6 bits, group",
        "approx-backprop, 6 bits, robust",
        "fewbit, 6 bits",
    ]
    exact, got = input_gradient(stock, x), input_gradient(net, x)
    assert float((got - exact).norm() / exact.norm()) <= 2 / 63 / 12**0.5 * 2  # two functions, ranges of about 1
    compiled: Any = torch.compile(net, backend="aot_eager", fullgraph=True)
    assert torch.equal(input_gradient(compiled, x), got)
    assert report.after is not None
    assert report.after.total == 2 * 6 * 96 + 4 * 8 * 2  # codes of 768 numbers; of one, two groups of eight features


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_bytes_and_evaluation(dtype: torch.dtype) -> None:
    net = nn.Sequential(nn.Hardtanh(-99, 99), nn.ELU(0.5)).to(dtype)
    x = torch.randn(130, 16, dtype=dtype, requires_grad=True)
    convert(net, METHOD, bits=5, include="1")
    assert saved_bytes(nn.Sequential(net[1]), x).total == math.ceil(5 * 130 * 16 / 8) + 4 * 16 * 3
    net.eval()
    assert torch.equal(net[1](x), F.elu(x, 0.5))
    with pytest.raises(KernelError, match="differentiated once only"):
        torch.autograd.grad(torch.autograd.grad(net.train()[1](x).sum(), x, create_graph=True)[0].sum(), x)


class CalledGelu(nn.Module):
    """Only the call shows the kind of GELU: torch has one name for both."""

    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.a, self.b, self.approximate = nn.Linear(64, 256), nn.Linear(256, 64), approximate

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.gelu(self.a(x), approximate=self.approximate))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("bits", [4, 5, 8])
def test_both_kinds_of_gelu_that_is_called_are_converted(approximate: str, bits: int) -> None:
    """The report must not name a conversion that does not happen."""
    report = convert(CalledGelu(approximate), "approx-backprop", bits=bits, inputs=torch.randn(64, 64))
    assert [site.name for site in report.converted if site.function == "gelu"] == ["gelu()"]
    assert report.after is not None
    assert not [group for group in report.after.groups() if group.operation == "gelu"]


def test_nothing_of_ours_is_listed_as_kept_whole() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    net.extend([nn.Linear(8 * 7 * 7, 16), nn.GELU(), nn.Linear(16, 4)])
    report = convert(net, "approx-backprop", bits=4, inputs=torch.randn(16, 3, 16, 16))
    assert "approx-backprop" in str(report)
    assert "Kept whole" not in str(report)
