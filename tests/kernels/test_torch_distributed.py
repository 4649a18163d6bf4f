"""Two processes, each with half of the batch, train like one process with the whole batch."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import actfit
from tests.kernels.processes import main, needs_distributed, of_two, whole, wrapped
from tests.kernels.saved import METHODS

pytestmark = pytest.mark.slow

MODELS = {"stock": {"method": "stock"}, **METHODS}
WRAPPERS = ("ddp", "fsdp2")
STEPS, RATE = 2, 0.5

# Sums are taken in another order: some hundred additions of float64 numbers below ten, in each of two steps.
ROUNDING = 1000 * torch.finfo(torch.float64).eps


def model(method: str) -> nn.Module:
    """The same in every process."""
    torch.manual_seed(0)
    first, second = actfit.nn.GELU(**MODELS[method]), actfit.nn.SiLU(**MODELS[method])
    return nn.Sequential(nn.Linear(6, 20), first, nn.Linear(20, 20), second, nn.Linear(20, 3)).double()


def batch() -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(1)
    x, target = (torch.randn(16, size, generator=made, dtype=torch.float64) for size in (6, 3))
    return x, target


def train(net: nn.Module, x: Tensor, target: Tensor) -> list[Tensor]:
    """The loss before each step."""
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    losses = []
    for _ in range(STEPS):
        loss = (net(x) - target).square().mean()
        losses.append(loss.detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def worker(rank: int, mesh: Any) -> dict[tuple[str, str], tuple[Tensor, list[Tensor]]]:
    """Trains all models in one of the two processes; (wrapper, method) -> losses and parameters."""
    mine = [half.chunk(2)[rank] for half in batch()]
    results = {}
    for method in MODELS:
        for wrapper in WRAPPERS:
            net = wrapped(model(method), wrapper, mesh)
            losses = torch.stack(train(net, *mine))
            torch.distributed.all_reduce(losses)
            results[wrapper, method] = losses / 2, [whole(parameter) for parameter in net.parameters()]
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[Tensor, list[Tensor]]]:
    """(wrapper, method) -> losses and parameters, of two processes."""
    return of_two(__file__, tmp_path_factory.mktemp("processes"), 120)


def alone(method: str) -> tuple[Tensor, list[Tensor]]:
    net = model(method)
    losses = torch.stack(train(net, *batch()))
    return losses, [parameter.detach() for parameter in net.parameters()]


def agree(got: tuple[Tensor, list[Tensor]], expected: tuple[Tensor, list[Tensor]], bound: float) -> bool:
    pairs = [(got[0], expected[0]), *zip(got[1], expected[1], strict=True)]
    return all(bool(((computed - exact).abs() <= bound).all()) for computed, exact in pairs)


@needs_distributed
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("method", MODELS)
def test_two_processes_are_as_one(results, method: str, wrapper: str) -> None:
    assert agree(results[wrapper, method], alone(method), ROUNDING)


def test_training_changes_what_is_compared() -> None:
    losses, parameters = alone("stock")
    assert losses[1] < losses[0]
    moved = zip(parameters, model("stock").parameters(), strict=True)
    assert all(((trained - initial).abs() > 1e-4).any() for trained, initial in moved)


if __name__ == "__main__":
    main(worker)
