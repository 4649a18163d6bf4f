"""Layers of approximate backprop and of torch: their inputs, gradients and errors."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

EPS = torch.finfo(torch.float64).eps
SCHEMES: dict[str, dict[str, Any]] = {
    "robust": {},
    "robust, 4 bits": {"bits": 4},
    "group": {"scheme": "group"},
    "stochastic": {"scheme": "group", "rounding": "stochastic"},
    "fused": {"scheme": "fused"},
    "paper": {"scheme": "paper"},
}
each_scheme = pytest.mark.parametrize("options", SCHEMES.values(), ids=SCHEMES)


def layer(dtype: torch.dtype = torch.float32, *, hostile: bool = False) -> tuple[nn.Module, nn.Module, Tensor]:
    """The issue's: 32 to 48 channels, 16 x 16, a batch of 16."""
    torch.manual_seed(0)
    norm, conv = nn.BatchNorm2d(32), nn.Conv2d(32, 48, 3, padding=1, bias=False)
    x = 2 * torch.randn(16, 32, 16, 16, dtype=dtype) + 1
    with torch.no_grad():
        if hostile:
            norm.bias[:8], norm.bias[8:16] = 4, -4
            norm.weight[20], norm.bias[20] = 0, 0.3
            x[:, 21] = 1
        else:
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.normal_(0, 0.3)
    return norm.to(dtype), conv.to(dtype), x


def plain(norm: nn.Module, *rest: nn.Module) -> nn.Module:
    return nn.Sequential(*(copy.deepcopy(module) for module in (norm, *rest)))


def gradients(net: nn.Module, x: Tensor, seed: int = 1) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs; gradients of x and of the parameters, in their order."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    result = net(x * 1)  # not a leaf, so saving it costs bytes
    outputs = list(result) if isinstance(result, tuple) else [result]
    made = torch.Generator().manual_seed(seed)
    cotangents = [torch.randn(output.shape, generator=made, dtype=output.dtype) for output in outputs]
    grads = torch.autograd.grad(outputs, [x, *net.parameters()], cotangents)
    return [output.detach() for output in outputs], list(grads)


def compared(ours: nn.Module, stock: nn.Module, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The gradients of both in pairs, in the order of `gradients`. Outputs must be equal bit by bit."""
    (outputs, got), (expected, exact) = gradients(ours, x), gradients(stock, x)
    assert all(map(torch.equal, outputs, expected))
    assert [output.stride() for output in outputs] == [output.stride() for output in expected]
    return list(zip(got, exact, strict=True))


def assert_near(pairs: list[tuple[Tensor, Tensor]], bound: float) -> None:
    """Relative to the largest gradient of each tensor, or to 1."""
    for computed, expected in pairs:
        assert computed.dtype == expected.dtype
        assert (computed - expected).abs().max() <= bound * (1 + expected.abs().max())


class Stock(nn.Module):
    """A copy of a first module and of the layers that take its result."""

    def __init__(self, first: list[nn.Module], layers: list[nn.Module]) -> None:
        super().__init__()
        self.first, self.layers = copy.deepcopy((nn.Sequential(*first), nn.ModuleList(layers)))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = self.first(x)
        return tuple(module(h) for module in self.layers)


def error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


class Doubled(nn.Module):
    """A layer on a tensor that is not a leaf, so saving it costs bytes."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return self.inner(x * 2)
