"""Two layers with an activation between them, and what is changed in place behind it."""

from typing import Any

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self, act: nn.Module | None = None) -> None:
        super().__init__()
        self.a, self.b, self.act = nn.Linear(8, 8), nn.Linear(8, 8), act or nn.GELU()

    def forward(self, x: Tensor) -> Any:
        return self.b(self.act(self.a(x)))


def x() -> Tensor:
    return torch.randn(4, 8)


class AddedTo(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.a(x))
        h += 1
        return self.b(h)
