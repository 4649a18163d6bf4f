"""Random programs that a tracer can follow: their steps are drawn before they run."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.programs import BINARY, IN_PLACE, OTHER, SIZE, UNARY


@torch.no_grad()
def _without_gradient(t: Tensor) -> Tensor:
    return torch.sin(t)


def _late_constant(t: Tensor) -> Tensor:
    """A constant computed from the chain in which it is used."""
    return t * torch.sigmoid(t.sum().detach())


def _drawn_constant(t: Tensor) -> Tensor:
    return t * torch.rand(SIZE, dtype=torch.float64)


UNARY = [
    *UNARY,
    *(_without_gradient, _late_constant, _drawn_constant),
    lambda t: F.dropout(torch.sin(F.dropout(torch.cos(t), 0.2)), 0.5),
    lambda t: torch.where(torch.sin(t) > 0, t, torch.exp(-t.abs())),
    lambda t: t * torch.sigmoid(1.7 * t),
    lambda t: torch.exp(torch.sin(t)),
]
_KINDS = {"unary": 0.6, "binary": 0.2, "product": 0.07, "other": 0.08, "in place": 0.05}


@dataclass(frozen=True)
class Step:
    """A function of the tensors at `operands`, counted from the last; `joins`: whether its result is appended."""

    does: Callable[..., Tensor]
    operands: tuple[int, ...]
    joins: bool = True


def drawn(seed: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The program of a seed: a scalar function of x and weight."""
    generator = random.Random(seed)
    steps: list[Step] = []
    count = 1

    def recent() -> int:
        return 1 + int(generator.random() ** 2 * count)

    for _ in range(generator.randint(4, 16)):
        match generator.choices(list(_KINDS), list(_KINDS.values()))[0]:
            case "unary":
                steps.append(Step(generator.choice(UNARY), (recent(),)))
            case "binary":
                steps.append(Step(generator.choice(BINARY), (recent(), recent())))
            case "other":
                steps.append(Step(generator.choice(OTHER), (recent(),)))
            case "in place":
                steps.append(Step(generator.choice(IN_PLACE), (recent(),), joins=False))
            case "product":
                steps.append(Step(torch.mm, (recent(), 0)))
        count += steps[-1].joins

    def run(x: Tensor, weight: Tensor) -> Tensor:
        tensors = [x @ weight]
        for step in steps:
            operands = [tensors[-place] if place else weight for place in step.operands]
            result = step.does(*operands)
            if step.joins:
                tensors.append(result)
        return (tensors[-1] @ weight).sum() + tensors[len(tensors) // 2].sum()

    return run
