"""Factors of gradients cross in place of activations' inputs that nothing else needs."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actfit.kernels.compression import cut as cutting
from actfit.kernels.compression.crossing import Crossing
from actfit.kernels.graph.inductor import InductorPartitioner
from tests.kernels.compression.cuts import Step, full_width, same
from tests.kernels.compression.graphs import error, partitioner, stock

EPS = torch.finfo(torch.float32).eps
DEPTH = 16  # operations in the longest product here

pytestmark = pytest.mark.usefixtures("small_and_seeded")


class Written(nn.Module):
    """GELU as GPT-2 writes it, in operations of its own."""

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.044715 * torch.pow(x, 3))))
        return result


class Gate(nn.Module):
    """Both of its tensors are factors of the other's gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(64, 128), nn.Linear(64, 128)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = F.silu(self.gate(x)) * self.up(x)
        return result


def frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


def step(*layers: nn.Module) -> tuple[Step, InductorPartitioner]:
    """A step of the layers, of numbers as large as make f' bend."""
    cut = partitioner(bits=4)
    made = Step(nn.Sequential(*layers), cut)
    (made.run(2 * torch.randn(128, 64)) * torch.randn(128, 64)).sum().backward()
    return made, cut


def coded(cut: InductorPartitioner) -> list[Crossing]:
    (graph,) = cut.graphs
    return [row for row in graph.crossings if row.form != "whole"]


@pytest.mark.parametrize(
    "activation", [nn.GELU(), nn.SiLU(), Written(), nn.ELU()], ids=["gelu", "silu", "written", "elu"]
)
def test_a_derivative_crosses(activation: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, it gives stock's gradient; coded, it errs less than the input in as many bytes."""
    made, cut = step(nn.Linear(64, 128), activation, frozen(nn.Linear(128, 64)))
    (row,) = coded(cut)
    assert (row.module, row.form) == ("0", "4 bits")
    assert row.operation != "aten.addmm"  # which gives x
    exact = made.again(stock)
    with full_width():
        # Factors are multiplied before the gradient is: each operation rounds once, by half an eps of its result.
        assert error(made.again(partitioner())[1], exact[1]) < DEPTH * EPS / 2
    off = error(made.again(partitioner(bits=4))[1], exact[1])
    monkeypatch.setattr(cutting, "cross_factors", lambda forward, backward, pairs, coded: pairs)
    assert off < error(made.again(partitioner(bits=4))[1], exact[1])


@pytest.mark.parametrize(
    ("layers", "operations"),
    [
        ((nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)), ["aten.addmm"]),
        ((nn.Linear(64, 64), frozen(Gate()), frozen(nn.Linear(128, 64))), ["aten.addmm", "aten.addmm"]),
    ],
    ids=["a trained layer after it", "a gate"],
)
def test_what_is_needed_otherwise_crosses_itself(layers: tuple[nn.Module, ...], operations: list[str]) -> None:
    made, cut = step(*layers)
    assert [row.operation for row in coded(cut)] == operations
    with full_width():
        assert same(made.again(partitioner()), made.again(stock))


def test_masks_stay_exact() -> None:
    """What dropout multiplies by is a factor, too, but a bit is enough for it."""
    made, cut = step(nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.1), frozen(nn.Linear(128, 64)))
    assert sorted(row.form for row in coded(cut)) == ["1 bit", "4 bits"]
    with full_width():
        assert same(made.again(partitioner()), made.again(stock))
