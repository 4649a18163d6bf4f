"""Models that the front ends for graphs rewrite, and the number of chains replaced in them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from kernels import saved_bytes
from kernels.forward_ad import backend, exported, traced
from kernels.forward_ad.rewrite import RegionModule
from tests.kernels.forward_ad.chains import mish

DOUBLE = torch.float64
# Warnings of torch 2.13 and transformers themselves, whatever model is traced and copied.
MARKS = [
    pytest.mark.slow,
    pytest.mark.usefixtures("afresh"),
    pytest.mark.filterwarnings("ignore:.*not a leaf Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]


class Rewritten:
    """A model rewritten by a front end, and the number of regions replaced in it, once it has run."""

    def __init__(self, front_end: str, model: nn.Module, *sample: Tensor) -> None:
        self.backend = backend()
        if front_end == "compiled":
            self.module = torch.compile(model, backend=self.backend)
        else:
            self.module = exported(model, sample) if front_end == "exported" else traced(model, *sample)
        self.front_end = front_end

    @property
    def regions(self) -> int:
        if self.front_end == "compiled":
            assert not self.backend.left
            return self.backend.regions
        return len([module for module in self.module.modules() if isinstance(module, RegionModule)])


each_front_end = pytest.mark.parametrize("front_end", ["exported", "traced", "compiled"])


class Act(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def in_units(model: nn.Module, x: Tensor, unit: int) -> float:
    """Bytes saved, rounded so that Python's numbers, saved as tensors of one element, do not count."""
    return round(saved_bytes(model, x).total / unit, 2)


class Model(nn.Module):
    """A function between two layers, with parameters, buffers and modules that it may use."""

    def __init__(self, function: Callable[["Model", Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8, dtype=DOUBLE), nn.Linear(8, 8, dtype=DOUBLE)
        self.weight = nn.Parameter(torch.rand(8, dtype=DOUBLE))
        self.register_buffer("row", torch.rand(8, dtype=DOUBLE))
        self.register_buffer("full", torch.rand(6, 8, dtype=DOUBLE))
        self.norm = nn.BatchNorm1d(8, dtype=DOUBLE)
        self.drop, self.in_place = nn.Dropout(0.3), nn.ReLU(inplace=True)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self, self.first(x)))


def wave(x: Tensor) -> Tensor:
    """A chain that saves two tensors besides those that its neighbours save."""
    return torch.exp(torch.sin(torch.cos(x)))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 8, 3, padding=1, dtype=DOUBLE), nn.BatchNorm2d(8, dtype=DOUBLE)
        self.act, self.drop, self.head = Act(mish), nn.Dropout(0.2), nn.Linear(8, 4, dtype=DOUBLE)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.act(self.norm(self.convolution(x)))).mean((2, 3)))


class Swish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x
