"""Results that a loss does not use have no gradient, not zeros: backward is that of stock, with the same Nones."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.kernels.graph.nets import assert_same, batch, pair


class Ways(nn.Module):
    """Three results of linear layers, made of shared parts by `made`."""

    def __init__(self, made: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(64, 64) for _ in range(3))
        self.made = made

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.made(F.gelu(self.first(x)), F.gelu(self.second(x)), F.gelu(self.third(x)))


class Twice(nn.Module):
    """Two blocks in a row, and the results of both."""

    def __init__(self, made: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Ways(made) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        first = self.blocks[0](x)
        return *first, *self.blocks[1](x + first[0].mean())


def parts(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """Halves of one tensor, whose gradients are concatenated."""
    left, right = torch.cat([a, b], 1).chunk(2, 1)
    return left, right * 2, c


def shared(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """Results that share parts, whose gradients are summed."""
    return a - b, b * c, (c.softmax(1) + a).sum()


def views(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """Views of one tensor, and one that is changed in place."""
    return a.view(-1, 8, 8), a.t(), b.relu_(), c.unbind(1)[0]


def moments(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """Several results of one operation, and one from `where`."""
    return *torch.var_mean(a * b), torch.where(b > 0, b, c), c.max(1).values


def infinite(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """A result whose derivative is infinite: zeros times it would be NaN."""
    return a, (b * 0).sqrt(), c


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "bits"), [*((made, None) for made in (parts, shared, views, moments, infinite)), (shared, 8)]
)
def test_each_result_alone(made: Any, bits: int | None) -> None:
    """In each set of results that a loss may use; the batch changes, so that sizes are symbols from the second on."""
    stock, ours, handle = pair(Twice(made), bits=bits)
    count = len(ours(batch()))
    sets = [[place] for place in range(count)] + [[0, count - 1], [1, count // 2]]
    for rows, used in enumerate(sets, 64):
        for model in (stock, ours):
            model.zero_grad()
            results = model(batch(rows))
            sum(results[place].square().sum() for place in used if results[place].requires_grad).backward()
        for (name, weight), other in zip(ours.named_parameters(), stock.parameters(), strict=True):
            assert (weight.grad is None) == (other.grad is None), (name, used)
        if bits is None and made is not infinite:
            assert_same(ours, stock)
        if made is infinite and not any(place in used for place in (1, count // 2 + 1)):
            assert all(p.grad is None or p.grad.isfinite().all() for p in ours.parameters())
    assert not handle.stock


def test_none_of_what_a_result_alone_needs_is_computed() -> None:
    """Weights that only an unused result depends on stay as they are under weight decay."""
    stock, ours, _ = pair(Twice(shared))
    for model in (stock, ours):
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.5)
        for _ in range(2):
            optimizer.zero_grad()
            model(batch())[0].square().sum().backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), stock.parameters(), strict=True))
    assert any(p.grad is None for p in ours.parameters())
