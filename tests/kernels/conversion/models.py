"""Models to convert, and why what is left was left."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kernels

X = torch.randn(33, 24)


def mlp(*acts: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(24, 40), *acts, nn.Linear(40, 16))


def reasons(report: kernels.conversion.Report) -> dict[str, str]:
    return {site.name: site.reason for site in report.left}


class Formula(nn.Module):
    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


class Everything(nn.Module):
    """An activation in every place there is."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.SiLU()
        self.stack = nn.ModuleList([nn.GELU(), self.act])
        self.table = nn.ModuleDict({"mish": nn.Mish(), "again": self.act})
        self.function = F.gelu
        self.tanhs = partial(F.gelu, approximate="tanh")
        self.lin = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lin(x)
        for act in [self.act, *self.stack, *self.table.values(), self.function, self.tanhs]:
            x = act(self.lin(x))
        return F.elu(self.lin(F.gelu(self.lin(x))), 0.5)
