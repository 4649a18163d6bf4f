"""Coded partitions in two processes: DDP around a model, FSDP2 around each of its layers."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from tests.kernels.compression import models
from tests.kernels.compression.cuts import allowed
from tests.kernels.compression.graphs import code_from, compiled, error, partitioner, stock
from tests.kernels.processes import main, needs_distributed, of_two, whole, wrapped

pytestmark = [pytest.mark.slow, needs_distributed]

BITS = 8


class Block(nn.Module):
    """A class of its own: Dynamo does not compile an nn.Sequential under FSDP2."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = models.mlp()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return result


def worker(rank: int, mesh: Any) -> dict[str, tuple[float, float, int, bool]]:
    """The error of gradients and its bound, the number of coded inputs, and whether both processes agree."""
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")  # Dynamo looks at it
    code_from(64, pytest.MonkeyPatch())
    measured = {}
    for wrapper in ("ddp", "fsdp2"):
        results, cut = [], partitioner(bits=BITS)
        for partition in (stock, cut):
            torch.manual_seed(0)
            model = wrapped(nn.Sequential(Block(), Block()), wrapper, mesh, (Block,))
            torch.manual_seed(1 + rank)
            compiled(model, partition)(torch.randn(64, 32)).square().mean().backward()
            results.append([whole(weight.grad) for weight in model.parameters()])
        inputs = sum(row.operation == "an input" for graph in cut.graphs for row in graph.crossings)
        measured[wrapper] = error(results[1], results[0]), allowed(cut.graphs, BITS), inputs, alike(results[1])
    return measured


def alike(gradients: list[Tensor]) -> bool:
    """Whether the other process has the same gradients."""
    mine = torch.cat([gradient.flatten() for gradient in gradients])
    both = [torch.empty_like(mine) for _ in range(2)]
    distributed.all_gather(both, mine)
    return torch.equal(*both)


def test_wrapped_models(tmp_path: Any) -> None:
    measured = of_two(__file__, tmp_path, 240)
    for off, bound, inputs, same in measured.values():
        assert 0 < off < bound
        assert inputs <= 1  # the first layer's output, and no weights
        assert same


if __name__ == "__main__":
    main(worker)
