"""Whole models for approximate backprop, their gradients and the errors of those."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

METHOD = "approx-backprop"


class PreActivated(nn.Module):
    """A block of a pre-activation ResNet with a projection, which calls its ReLUs as functions."""

    def __init__(self, inward: int, outward: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(inward), nn.BatchNorm2d(outward)
        self.conv1 = nn.Conv2d(inward, outward, 3, padding=1, stride=2, bias=False)
        self.conv2 = nn.Conv2d(outward, outward, 3, padding=1, bias=False)
        self.past = nn.Conv2d(inward, outward, 1, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(x))
        return self.conv2(torch.relu(self.norm2(self.conv1(h)))) + self.past(h)


class Residual(nn.Module):
    """A block of torchvision's ResNets: one ReLU module for all, in place, also after an addition in place."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class Attention(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (projection(h).unflatten(-1, (4, -1)).transpose(1, 2) for projection in (self.q, self.k, self.v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) if x.dim() == 4 else x.mean(1)


def stem(*more: nn.Module) -> list[nn.Module]:
    return [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), *more]


MODELS = {
    "pre-activation": lambda: nn.Sequential(
        *stem(), PreActivated(16, 32), PreActivated(32, 32), Mean(), nn.Linear(32, 4)
    ),
    "residual": lambda: nn.Sequential(
        *stem(nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        Residual(16),
        Residual(16),
        nn.AvgPool2d(2),
        Mean(),
        nn.Linear(16, 4),
    ),
    "transformer": lambda: nn.Sequential(nn.Linear(8, 32), Attention(), Attention(), Mean(), nn.Linear(32, 4)),
}
SHAPES = {"transformer": (8, 16, 8)}
each_model = pytest.mark.parametrize("name", MODELS)


def made(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return MODELS[name](), torch.randn(SHAPES.get(name, (16, 1, 16, 16)))


def gradients(net: Any, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    y = net(x)
    parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
    return y.detach(), list(torch.autograd.grad(y, parameters, torch.ones_like(y) + torch.arange(4)))


def error(got: list[Tensor], expected: list[Tensor]) -> float:
    """The relative error of all gradients together."""
    return float(
        torch.cat([(gradient - exact).flatten() for gradient, exact in zip(got, expected, strict=True)]).norm()
        / torch.cat([gradient.flatten() for gradient in expected]).norm()
    )
