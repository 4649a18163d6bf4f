"""Models with modules and with calls, their gradients, and how near those are."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPS = torch.finfo(torch.float32).eps


class Calls(nn.Module):
    """Activations that are called: of `torch.nn.functional`, of a tensor, written out, and one in a plain attribute."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 4)
        self.last = F.mish

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.first(x))
        x = self.second(x)
        x = x * torch.sigmoid(x)
        x = F.softplus(x).tanh()
        return self.last(self.third(x))


class Plain(nn.Module):
    """A single call, which needs no more than that."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


def modules() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 4))


MODELS: dict[str, Callable[[], nn.Module]] = {"modules": modules, "a call": Plain, "calls": Calls}
each_model = pytest.mark.parametrize("kind", MODELS)


def build(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[kind]()


def batch() -> Tensor:
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(1))


def gradients(run: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor | None = None) -> list[Tensor]:
    """Of a sum of squares; with its value."""
    x = (batch() if x is None else x).clone().requires_grad_()
    y = run(x)
    loss = y.to(torch.promote_types(y.dtype, torch.float32)).square().sum()
    return [loss.detach(), *torch.autograd.grad(loss, [x, *model.parameters()])]


def near(got: list[Tensor], expected: list[Tensor], bound: float) -> bool:
    pairs = zip(got, expected, strict=True)
    return all(
        bool(((tensor - other).abs() <= bound * other.abs().max().clamp(min=1)).all()) for tensor, other in pairs
    )


def equal(got: list[Tensor], expected: list[Tensor]) -> bool:
    return len(got) == len(expected) and all(map(torch.equal, got, expected))


# Inductor adds biases and sums squares in an order of its own: some tens of roundings.
ROUNDING = 64 * EPS
