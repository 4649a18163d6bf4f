"""Small networks of repeated blocks."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actfit import Handle, compress

WIDTH = 64


class Block(nn.Module):
    """A residual block with a norm, dropout on request, and a number as an argument."""

    def __init__(self, dropout: float = 0.0, width: int = WIDTH) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        made: Tensor = x + self.drop(self.down(F.relu(F.gelu(self.up(self.norm(x)))))) * scale
        return made


def net(dropout: float = 0.0, layers: int = 2) -> nn.Sequential:
    """Blocks with the same weights at each call."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block(dropout) for _ in range(layers)))


def pair(made: nn.Module | None = None, **options: Any) -> tuple[nn.Module, nn.Module, Handle]:
    """A model and its compressed copy, with the copy's handle."""
    stock = net() if made is None else made
    ours = copy.deepcopy(stock)
    return stock, ours, compress(ours, **options)


def tower(width: int = 64) -> nn.Sequential:
    """Two layers with the same weights at each call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, 32))


def batch(rows: int = 96, width: int = WIDTH) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1))


def loss_of(model: nn.Module) -> Tensor:
    made: Tensor = model(batch()).square().sum()
    return made


def steps(models: Iterable[nn.Module], call: Callable[[nn.Module], Tensor] = loss_of, count: int = 1) -> None:
    """Steps of each model from the same random numbers; the last one's gradients stay."""
    for model in models:
        for _ in range(count):
            model.zero_grad()
            torch.manual_seed(3)
            call(model).backward()


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def assert_same(ours: nn.Module, stock: nn.Module) -> None:
    """The gradients are the same, bit for bit, and the same ones are missing."""
    names = [name for name, _ in stock.named_parameters()]
    for name, a, b in zip(names, gradients(ours), gradients(stock), strict=True):
        assert (a is None) == (b is None), name
        assert a is None or b is None or torch.equal(a, b), name
