"""Linear layers with many classes: PyTorch's own, and one whose logits wait."""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from actfit.kernels.head.heads import MANY, Head

WIDTH, CLASSES, ROWS = 8, MANY, 300  # three chunks of rows, of which the last is not whole

# float64 rounds by 1.1e-16; a sum of 300 rows in another order differs by 300 times as much at most, and products of
# numbers that differ so by a few times that.
NEARLY = 1e-12


class Pair(NamedTuple):
    stock: nn.Linear
    ours: nn.Linear
    head: Head

    def with_each(self, x: Tensor, y: Tensor) -> tuple[tuple[nn.Linear, Tensor], tuple[nn.Linear, Tensor]]:
        return (self.stock, x), (self.ours, y)

    def gradients(self) -> list[tuple[Tensor, Tensor]]:
        return [(p.grad, q.grad) for p, q in zip(self.stock.parameters(), self.ours.parameters(), strict=True)]

    def same(self, x: Tensor, y: Tensor) -> bool:
        """Whether all gradients are, bit for bit; x is the input of stock, y of ours."""
        return all(torch.equal(ours, stock) for stock, ours in [*self.gradients(), (x.grad, y.grad)])


def pair(dtype: torch.dtype = torch.float64, *, bias: bool = True) -> Pair:
    torch.manual_seed(0)
    stock = nn.Linear(WIDTH, CLASSES, bias=bias, dtype=dtype)
    ours = copy.deepcopy(stock)
    ours.forward = head = Head(ours, "head")
    return Pair(stock, ours, head)


def inputs(dtype: torch.dtype = torch.float64, rows: tuple[int, ...] = (ROWS,)) -> tuple[Tensor, Tensor]:
    """Two equal tensors, each a leaf."""
    x = torch.randn(*rows, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(1))
    return x.clone().requires_grad_(), x.clone().requires_grad_()


def targets(rows: tuple[int, ...] = (ROWS,), ignored: int | None = None) -> Tensor:
    made = torch.randint(CLASSES, rows, generator=torch.Generator().manual_seed(2))
    return made if ignored is None else torch.where(torch.arange(made.numel()).view(rows) % 3 == 0, ignored, made)


def agree(
    both: Pair, loss: Callable[[Tensor], Tensor], rows: tuple[int, ...] = (ROWS,), nearly: float = NEARLY
) -> None:
    """Loss and gradients of both, of a function of logits."""
    dtype = both.stock.weight.dtype
    x, y = inputs(dtype, rows)
    stock, ours = loss(both.stock(x)), loss(both.ours(y))
    assert both.head.last.used
    assert both.head.last.asked is None
    assert ours.dtype == stock.dtype
    assert near(ours, stock, nearly)
    weights = torch.rand(stock.shape, generator=torch.Generator().manual_seed(3)).to(stock)
    (stock * weights).sum().backward()
    (ours * weights).sum().backward()
    for expected, made in [*both.gradients(), (x.grad, y.grad)]:
        assert made.dtype == expected.dtype
        assert near(made, expected, nearly)


def near(made: Tensor, expected: Tensor, nearly: float) -> bool:
    return bool((made.double() - expected.double()).norm() <= nearly * expected.double().norm())
