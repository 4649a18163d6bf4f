"""Activations written out in Python: what Guo et al.'s nested forward AD promises, by its policy and by exact.

Nested, a chain saves f'(x) and, for the next product, y: two tensors where plain autograd saves up to five. Exact saves
one, of which backward computes the others again. Chains that are no function of the catalogue stay exact by either.
"""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actfit import compress
from tests.kernels.saved import bytes_in_graph

ROWS, WIDTH = 64, 128
UNIT = 4 * ROWS * WIDTH  # bytes of an activation
MASK = ROWS * WIDTH // 8


def new_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


# The function; the activations that linear - chain - linear saves: plain, and by the policy.
CHAINS: dict[str, tuple[Callable[[Tensor], Tensor], int, int]] = {
    "swish": (lambda x: x * torch.sigmoid(x), 3, 2),
    "swish by division": (lambda x: x / (1 + torch.exp(-x)), 4, 1),
    "mish": (lambda x: x * torch.tanh(F.softplus(x)), 3, 2),
    "mish by log": (lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))), 5, 2),
    "snake": (lambda x: x + torch.sin(2 * x) ** 2 / 2, 3, 1),
    "gelu by erf": (lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))), 4, 1),
    "new gelu": (new_gelu, 5, 2),
    "new gelu, dropout": (lambda x: F.dropout(new_gelu(x), 0.1), 6, 2),
    "torch's gelu": (F.gelu, 2, 2),
    "tanh": (torch.tanh, 1, 1),
    "affine": (lambda x: (x * 2 + 1) / 3, 1, 1),
}


class Chain(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor], *norm: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.act, self.first, self.last = act, nn.Sequential(nn.Linear(32, WIDTH), *norm), nn.Linear(WIDTH, 32)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.act(self.first(x)))
        return made


def step(model: nn.Module) -> tuple[Tensor, int, list[Tensor]]:
    """The loss, the bytes saved for it, and the gradients."""
    torch.manual_seed(1)
    x = torch.randn(ROWS, 32)
    loss = model(x).sum()
    kept = bytes_in_graph(loss, [x, *model.parameters(), *model.buffers()])
    return loss.detach(), kept, list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("name", CHAINS)
def test_loss_gradients_and_bytes(name: str) -> None:
    act, plain, by_policy = CHAINS[name]
    stock = Chain(act)
    exact, nested = copy.deepcopy(stock), copy.deepcopy(stock)
    handles = compress(exact), compress(nested, policy="forward-ad")
    loss, kept, gradients = step(stock)
    drops = "dropout" in name
    assert kept // UNIT == plain
    loss_now, kept, gradients_now = step(exact)
    assert kept == (2 * UNIT + MASK if drops else UNIT)  # what the second product reads of a dropout crosses, too
    assert torch.equal(loss_now, loss)
    assert all(map(torch.equal, gradients_now, gradients))
    loss_now, kept, gradients_now = step(nested)
    assert kept == by_policy * UNIT + (MASK if drops else 0)
    # Our kernels round a chain's value once, and its derivative once; plain autograd each operation.
    eps = torch.finfo(torch.float32).eps
    assert abs(loss_now - loss) <= 16 * eps * ROWS * 32
    for computed, expected in zip(gradients_now, gradients, strict=True):
        assert (computed - expected).abs().max() <= 16 * eps * expected.abs().max()
    assert not any(handle.stock for handle in handles)


@pytest.mark.parametrize(("name", "nested"), [("mish", 3), ("new gelu", 3), ("snake", 1)])
def test_behind_a_norm_exact_saves_its_input_alone(name: str, nested: int) -> None:
    """Nested forward AD saves what the norm normalises, f'(x) and y."""
    for policy, tensors in ((None, 1), ("forward-ad", nested)):
        model = Chain(CHAINS[name][0], nn.BatchNorm1d(WIDTH))
        compress(model, policy=policy)
        assert step(model)[1] == tensors * UNIT
