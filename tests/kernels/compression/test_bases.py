"""Tensors cross in place of their views with gaps."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.kernels.compression.cuts import Step, full_width, same
from tests.kernels.compression.graphs import partitioner, stock

pytestmark = pytest.mark.usefixtures("small_and_seeded")


class Adapted(nn.Module):
    """Attention whose query, key and value come from one frozen layer with an adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.out = nn.Linear(64, 192).requires_grad_(False), nn.Linear(64, 64).requires_grad_(False)
        self.down, self.up = nn.Linear(64, 4), nn.Linear(4, 192)

    def forward(self, x: Tensor) -> Tensor:
        parts = (self.all(x) + self.up(self.down(x))).split(64, -1)
        q, k, v = (part.unflatten(-1, (2, 32)).transpose(1, 2) for part in parts)
        result: Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return result


def test_query_key_and_value_cross_as_one() -> None:
    """And attention is computed again of it, with gradients as before where codes are whole."""
    cut = partitioner(bits=4)
    made = Step(Adapted(), cut)
    (made.run(torch.randn(4, 64, 64)) * torch.randn(4, 64, 64)).sum().backward()
    (graph,) = cut.graphs
    large = {(row.operation, row.form) for row in graph.crossings if row.before > 4 * 64 * 64}
    assert large == {
        ("aten.add.Tensor", "4 bits"),
        ("aten._scaled_dot_product_flash_attention_for_cpu", "computed again"),
    }
    with full_width():
        assert same(made.again(partitioner()), made.again(stock))


class First(nn.Module):
    """Of a text, only the first position goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(64, 64).requires_grad_(False), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head((self.layer(x) + x).split([1, 63], 1)[0])
        return result


def test_a_small_part_crosses_by_itself() -> None:
    cut = partitioner(bits=4)
    made = Step(First(), cut)
    made.run(torch.randn(16, 64, 64)).sum().backward()
    (graph,) = cut.graphs
    assert max(row.before for row in graph.crossings) == 16 * 64 * 4
