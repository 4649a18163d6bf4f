"""Random small modules: exact bit for bit, and with bits the same forward and the same Nones."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from actfit import compress
from tests.kernels.graph.nets import assert_same, pair
from tests.kernels.graph.steps import step

pytestmark = pytest.mark.slow

WIDTH, ROWS = 16, 24
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "rms norm": lambda: nn.RMSNorm(WIDTH),
    "dropout": lambda: nn.Dropout(0.3),
    "conv": lambda: nn.Conv1d(1, 1, 3, padding=1),
}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "leaky relu": F.leaky_relu,
    "hardswish": F.hardswish,
    "tanh": torch.tanh,
    "softmax": lambda x: x.softmax(-1),
    "max pool": lambda x: F.max_pool1d(x[:, None], 3, 1, 1)[:, 0],
    "mean": lambda x: x - x.mean(0, keepdim=True),
    "broadcast": lambda x: x * x[:1].expand_as(x),
    "view": lambda x: x.view(-1, 4, WIDTH // 4).transpose(1, 2).reshape(x.shape),
    "halves": lambda x: torch.cat([part * (k + 1) for k, part in enumerate(x.chunk(2, 1))], 1),
    "in place": lambda x: (x * 2).add_(x).relu_(),
    "abs": lambda x: (x.abs() + 1).sqrt(),
    "where": lambda x: torch.where(x > 0.2, x * x, -x),
    "no grad": lambda x: x * x.detach().exp().clamp(max=3),
}
JOINS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "max": torch.maximum,
    "product": lambda a, b: (a @ b.t()).softmax(-1) @ b,
    "attention": lambda a, b: F.scaled_dot_product_attention(a[None, None], b[None, None], a[None, None])[0, 0],
}

Operation = tuple[str, int, int]  # its name, and which earlier values it takes
OPERATIONS = st.lists(
    st.tuples(st.sampled_from([*LAYERS, *FUNCTIONS, *JOINS]), st.integers(0, 9), st.integers(0, 9)),
    min_size=2,
    max_size=9,
)


class Drawn(nn.Module):
    """A directed graph of operations: each takes earlier values; two of the last are returned."""

    def __init__(self, operations: list[Operation]) -> None:
        super().__init__()
        self.operations = operations
        self.layers = nn.ModuleDict(
            {str(k): LAYERS[name]() for k, (name, *_) in enumerate(operations) if name in LAYERS}
        )
        self.first = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = [x, self.first(x)]
        for place, (name, first, second) in enumerate(self.operations):
            a, b = made[-1 - first % len(made)], made[-1 - second % len(made)]
            if name in LAYERS:
                layer = self.layers[str(place)]
                made.append(layer(a[:, None])[:, 0] if name == "conv" else layer(a))
            else:
                made.append(FUNCTIONS[name](a) if name in FUNCTIONS else JOINS[name](a, b))
        return made[-1], made[-2]


class Blocks(nn.Module):
    """Two blocks, and a loss on the last one's first result and, on request, on the first one's second."""

    def __init__(self, operations: list[Operation], both: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Drawn(operations) for _ in range(2))
        self.both = both

    def forward(self, x: Tensor) -> Tensor:
        first, side = self.blocks[0](x)
        last, _ = self.blocks[1](first)
        made: Tensor = last.square().mean() + (side.square().mean() if self.both else 0)
        return made


def blocks(operations: list[Operation], both: bool) -> tuple[Blocks, dict[str, Any]]:
    torch.manual_seed(0)
    return Blocks(operations, both), {"x": torch.randn(ROWS, WIDTH, requires_grad=True)}


@settings(max_examples=12, deadline=None)
@given(OPERATIONS, st.booleans(), st.booleans())
def test_exact_bit_for_bit(operations: list[Operation], both: bool, needs: bool) -> None:
    made, inputs = blocks(operations, both)
    stock, ours, handle = pair(made)
    of_each = []
    for model in (stock, ours):
        torch.manual_seed(3)
        x = inputs["x"].detach().clone().requires_grad_(needs)
        loss = model(x)
        if loss.requires_grad:
            loss.backward()
        of_each.append((loss.detach(), x.grad))
    assert torch.equal(of_each[0][0], of_each[1][0]) or of_each[0][0].isnan()
    assert (of_each[0][1] is None) == (of_each[1][1] is None)
    if not of_each[0][0].isnan():
        assert_same(ours, stock)
        assert of_each[0][1] is None or torch.equal(of_each[0][1], of_each[1][1])
    assert not handle.stock


@settings(max_examples=12, deadline=None)
@given(OPERATIONS, st.booleans())
def test_with_bits(operations: list[Operation], both: bool) -> None:
    model, inputs = blocks(operations, both)
    stock = step(model, inputs)
    assume(any(gradient is not None and gradient.any() for gradient in stock.gradients))
    handle = compress(model, bits=8)
    ours = step(model, inputs)
    assert torch.equal(ours.loss, stock.loss)
    assert [a is None for a in ours.gradients] == [b is None for b in stock.gradients]
    assert not handle.stock
