"""Losses in other forms than F.cross_entropy of rows: by logarithms, and with classes before positions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.kernels.head.heads import CLASSES, NEARLY, agree, pair, targets

REDUCTIONS = ("mean", "sum", "none")
LOGARITHMS: dict[str, Callable[[Tensor], Tensor]] = {
    "method": lambda logits: logits.log_softmax(-1),
    "torch": lambda logits: torch.log_softmax(logits, dim=1),
    "module": nn.LogSoftmax(-1),
    "capped": lambda logits: F.log_softmax(30.0 * torch.tanh(logits / 30.0), dim=-1),
    "float": lambda logits: F.log_softmax(logits, dim=-1, dtype=torch.float32),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("logarithm", LOGARITHMS)
def test_likelihoods_of_logarithms(logarithm: str, reduction: str) -> None:
    target, weight = targets(ignored=7), torch.rand(CLASSES, dtype=torch.float64)
    weight = weight.float() if logarithm == "float" else weight

    def loss(logits: Tensor) -> Tensor:
        return F.nll_loss(LOGARITHMS[logarithm](logits), target, weight, ignore_index=7, reduction=reduction)

    agree(pair(), loss, nearly=1e-6 if logarithm == "float" else NEARLY)


TURNS: dict[str, Callable[[Tensor], Tensor]] = {
    "transpose": lambda logits: logits.transpose(1, 2),
    "from the end": lambda logits: logits.transpose(-1, 1),
    "permute": lambda logits: logits.permute(0, 2, 1),
    "torch.permute": lambda logits: torch.permute(logits, (0, 2, 1)),
    "movedim": lambda logits: logits.movedim(-1, 1),
    "mT": lambda logits: logits.mT,
    "then scaled": lambda logits: logits.transpose(1, 2) * 0.5,
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("turn", TURNS)
def test_classes_before_positions(turn: str, reduction: str) -> None:
    rows = (3, 100)
    target = targets(rows, ignored=-100)
    options: dict[str, Any] = {"reduction": reduction, "label_smoothing": 0.1}
    agree(pair(), lambda logits: F.cross_entropy(TURNS[turn](logits), target, **options), rows)
    agree(pair(), lambda logits: F.nll_loss(TURNS[turn](logits).log_softmax(1), target, reduction=reduction), rows)
    agree(pair(), lambda logits: F.nll_loss(TURNS[turn](logits.log_softmax(2)), target, reduction=reduction), rows)
