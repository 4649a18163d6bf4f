"""Functions that a module's forward calls: found, replaced, and undone."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels import convert, saved_bytes
from kernels.conversion.bytecode import functions_called
from kernels.conversion.calls import ReroutedForward
from tests.kernels.conversion.models import X, mlp, reasons


def test_a_parameter_given_in_a_call_reaches_the_kernel() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor, slope: float) -> Tensor:
            return F.leaky_relu(x, negative_slope=slope) + F.gelu(input=x, approximate="tanh")

    net, x = Net(), torch.randn(50, requires_grad=True)
    expected = net(x, 0.3)
    (slope,) = torch.autograd.grad(expected.sum(), x)
    convert(net, "forward-ad")
    y = net(x, 0.3)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], slope)
    assert saved_bytes(net, x, 0.3).by_operation() == {
        "leaky_relu, forward-ad": x.nbytes,
        "gelu_tanh, forward-ad": x.nbytes,
    }


class Gated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x) + x.sigmoid() * torch.sigmoid(x + 1)


def test_x_times_its_sigmoid_is_silu() -> None:
    net, x = Gated(), torch.randn(50, requires_grad=True)
    y = net(x)
    (expected,) = torch.autograd.grad(y.sum(), x)
    before = saved_bytes(net, x).total
    report = convert(net, "fewbit", bits=4, include="silu()")
    assert [site.name for site in report.converted] == ["silu()"]
    torch.testing.assert_close(net(x), y)
    # The product kept x, the input, and its sigmoid; the few bits stand for both.
    assert saved_bytes(net, x).total == before - x.nbytes + 4 * math.ceil(50 / 8)
    (got,) = torch.autograd.grad(net(x).sum(), x)
    assert 0 < (got - expected).abs().max() <= 0.2  # f' of silu in 16 steps
    report.revert()
    assert "forward" not in vars(net)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.act = Inner(), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.act(self.inner(x)))


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x + self.shift)

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))


def test_calls_belong_to_the_innermost_module_and_can_be_excluded() -> None:
    net, x = Outer(), torch.randn(50, requires_grad=True)
    report = convert(net, "fewbit", exclude=["inner", "act"])
    assert reasons(report) == {"inner.gelu()": "excluded", "act": "excluded"}
    assert saved_bytes(net, x).by_module() == {"inner": x.nbytes, "act": x.nbytes, "": 3 * math.ceil(50 / 8)}
    report.revert()
    assert not any("forward" in vars(module) for module in net.modules())
    convert(net, "fewbit", include="inner.gelu()")
    assert saved_bytes(net, x).by_module() == {"act": x.nbytes, "": x.nbytes, "inner": 3 * math.ceil(50 / 8)}


def test_calls_are_found_in_the_code_of_forward() -> None:
    from torch.nn.functional import silu as imported

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            def inner(x: Tensor) -> Tensor:
                return torch.nn.functional.mish(x).relu()

            return inner(x) + self.sigmoid(x) + F.conv1d(x, x) + MODULE_LEVEL(x).tanh()

        def sigmoid(self, x: Tensor) -> Tensor:
            return x

    assert functions_called(Net()) == {"mish": True, "relu": False, "silu": True, "tanh": False}
    assert imported is MODULE_LEVEL


MODULE_LEVEL = F.silu


class Named(nn.Module):
    """Calls modules by names that tensors have methods of, too."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.relu, self.inner = nn.Linear(24, 24), nn.ReLU(), mlp(nn.GELU())
        self.inner.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.inner
        return inner.relu(self.lin(self.relu(self.lin(x)))) * self.lin(x).sigmoid()


@pytest.mark.parametrize("method", ["auto", "forward-ad"])
def test_a_module_that_goes_by_a_methods_name_is_no_call(method: str) -> None:
    report = convert(Named(), method, inputs=X)
    assert {site.name for site in report.sites} == {"relu", "inner.relu", "inner.1", "sigmoid()"}


def test_a_method_beside_a_module_of_its_name_is_found() -> None:
    class Both(Named):
        def forward(self, x: Tensor) -> Tensor:
            inner = self.inner
            return inner.relu(self.lin(x)) + self.lin(x).relu()

    assert "relu()" in {site.name for site in convert(Both(), "fewbit", bits=1, inputs=X).converted}


def test_a_rerouted_forward_keeps_its_signature_and_can_be_copied() -> None:
    import copy
    import inspect

    net, x = Outer(), torch.randn(50, requires_grad=True)
    convert(net, "fewbit", bits=1)
    assert isinstance(vars(net)["forward"], ReroutedForward)
    assert str(inspect.signature(net.forward)) == "(x: torch.Tensor) -> torch.Tensor"
    twin = copy.deepcopy(net)
    assert twin.forward.module is twin
    assert saved_bytes(twin, x).total == saved_bytes(net, x).total < x.nbytes
