"""How a model compiled with codes is used: dtypes, layouts, changes in place, checkpoints, several backwards."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.kernels.compression import models
from tests.kernels.compression.cuts import Step, allowed, full_width, same
from tests.kernels.compression.graphs import compiled, error, gradients, partitioner, stock

BITS = 8

pytestmark = [pytest.mark.usefixtures("small_and_seeded"), pytest.mark.slow]


class Tied(nn.Module):
    """A block between an embedding and a head with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.block = nn.Embedding(100, 64), models.Llama()
        self.head = nn.Linear(64, 100, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        result: Tensor = self.head(self.block(self.words(words)))
        return result


def halves(dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    return models.mlp().to(dtype), torch.randn(64, 32, dtype=dtype)


def channels_last() -> tuple[nn.Module, Tensor]:
    x = torch.randn(8, 3, 16, 16).to(memory_format=torch.channels_last)
    return models.Convolutional().to(memory_format=torch.channels_last), x


CASES: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "float16": lambda: halves(torch.float16),
    "bfloat16": lambda: halves(torch.bfloat16),
    "float64": lambda: halves(torch.float64),
    "channels last": channels_last,
    "transposed": lambda: (models.mlp(), torch.randn(32, 64).t()),
    "tied": lambda: (Tied(), torch.randint(100, (2, 64))),
}


@pytest.mark.parametrize("case", CASES)
def test_dtypes_layouts_and_ties(case: str) -> None:
    model, x = CASES[case]()
    step, cut = Step(lambda x: model(x).float().square().mean(), stock), partitioner(bits=BITS)
    step.run(x).backward()
    exact = step.again(stock)
    assert error(step.again(cut)[1], exact[1]) < allowed(cut.graphs, BITS)
    with full_width():
        assert same(step.again(partitioner()), exact)


def output_of(model: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    return compiled(model, partitioner(bits=BITS), fullgraph=True)(x), list(model.parameters())


def test_double_backward_is_refused() -> None:
    x = torch.randn(64, 32, requires_grad=True)
    (gradient,) = torch.autograd.grad(output_of(models.mlp(), x)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        gradient.sum().backward()


@pytest.mark.parametrize("changed", ["output", "batch", "weight"])
def test_changes_in_place_before_backward(changed: str) -> None:
    """What crosses whole raises, as in eager mode: what forward returns does."""
    model, x = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()), torch.randn(64, 32)
    y, weights = output_of(model, x)
    loss = y.sum()
    with torch.no_grad():
        {"output": y, "batch": x, "weight": weights[2]}[changed].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, weights)


def test_without_gradients_nothing_is_coded() -> None:
    model, x, cut = models.mlp(), torch.randn(64, 32), partitioner()
    run = compiled(model, cut)
    with torch.no_grad():
        y = run(x)
    with torch.inference_mode():
        assert torch.equal(run(x), y)
    assert not cut.graphs
    assert torch.equal(compiled(model.eval(), cut)(x), y)


def test_an_order_that_is_computed_again_is_forwards() -> None:
    """The gradient of the bias uses the coded tensor only for its order, which 2 bits would change."""

    class Sorting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(32, 64)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = checkpoint(lambda h: h.sort(-1).values, self.linear(x), use_reentrant=False)
            return result

    model, x = Sorting(), torch.randn(64, 32)
    exact = gradients(model, compiled(model, stock), x)
    for got, expected in zip(gradients(model, compiled(model, partitioner(bits=2)), x), exact, strict=True):
        torch.testing.assert_close(got, expected)


def test_several_backwards() -> None:
    y, weights = output_of(models.mlp(), torch.randn(64, 32))
    first, again = (torch.autograd.grad(y.sum(), weights, retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, again))
    torch.autograd.grad(y.sum(), weights)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y.sum(), weights)
