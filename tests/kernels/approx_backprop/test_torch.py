"""Whole models by approximate backprop, compiled and in two processes."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernels import convert, saved_bytes
from tests.kernels.approx_backprop.models import METHOD, each_model, error, gradients, made
from tests.kernels.processes import main, needs_distributed, of_two, whole, wrapped

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("afresh", "one_thread")]


@each_model
def test_compiled(name: str) -> None:
    net, x = made(name)
    stock = copy.deepcopy(net)
    convert(net, METHOD, bits=4, inputs=x)
    _, got = gradients(torch.compile(net, backend="aot_eager", fullgraph=True), x)
    net.load_state_dict(stock.state_dict())
    assert error(got, gradients(net, x)[1]) == 0


def test_compiled_by_inductor() -> None:
    net, x = made("residual")
    net = nn.Sequential(*net[:5], *net[6:])  # one block: to compile takes long
    stock = copy.deepcopy(net)
    convert(net, METHOD, bits=4, inputs=x)
    compiled = torch.compile(net, fullgraph=True)
    kept = saved_bytes(compiled, x)
    in_bits = sum(one.bytes for one in kept.tensors if one.dtype == "uint8")
    assert in_bits == sum(one.bytes for one in saved_bytes(net, x).tensors if one.dtype == "uint8")
    weights = sum(one.numel() * 4 for one in net.parameters())  # of convolutions, which it keeps in another layout
    assert kept.total <= saved_bytes(net, x).total + weights
    net.load_state_dict(stock.state_dict())
    _, got = gradients(compiled, x)
    net.load_state_dict(stock.state_dict())
    # Its kernels round otherwise, and so a number in some thousands has another code, a step of 1/16 of the range away.
    assert error(got, gradients(net, x)[1]) <= 0.02


class Added(nn.Module):
    """Changes a norm's result in place by a statement of its own, which torch.compile gives no sign of."""

    def __init__(self, by_helper: bool) -> None:
        super().__init__()
        self.norm, self.linear, self.by_helper = nn.BatchNorm1d(8), nn.Linear(8, 4), by_helper

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        if self.by_helper:
            helper(h)
        else:
            h[:, :4] += 3
        return self.linear(h)


def helper(x: Tensor) -> None:
    x.add_(3)


@pytest.mark.parametrize(("by_helper", "looks"), [(False, False), (False, True), (True, True)])
def test_what_is_changed_in_place_is_not_trusted_when_compiled(by_helper: bool, looks: bool) -> None:
    torch.manual_seed(0)
    net, x = Added(by_helper), torch.randn(64, 8)
    stock = copy.deepcopy(net)
    convert(net, METHOD, inputs=x if looks else None)
    _, exact = gradients(stock, x)
    for run in (net, torch.compile(net, backend="aot_eager")):
        _, got = gradients(run, x)
        assert error(got, exact) <= 0.05


def network() -> nn.Module:
    """The same in every process. Norms of rows, so that half a batch is half the sum."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(6, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.RMSNorm(64), nn.Linear(64, 3)
    )
    convert(net.double(), METHOD, scheme="fused")
    return net


# wrapper -> what it wraps each by itself
WRAPPERS: dict[str, tuple[type, ...]] = {
    "ddp": (),
    "fsdp2": (),
    "fsdp2 by layer": (nn.Linear, nn.LayerNorm, nn.RMSNorm),
}


def worker(rank: int, mesh: Any) -> dict[str, list[Tensor]]:
    """What each of two processes does."""
    found = {}
    for wrapper, layers in WRAPPERS.items():
        net = wrapped(network(), wrapper, mesh, layers)
        steps(net, batch().chunk(2)[rank])
        found[wrapper] = [whole(one) for one in net.parameters()]
    return found


def batch() -> Tensor:
    return torch.randn(16, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def steps(net: nn.Module, x: Tensor) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        net(x * 1).square().mean().backward()
        optimizer.step()


@needs_distributed
def test_two_processes_are_as_one(tmp_path: Any) -> None:
    found = of_two(__file__, tmp_path, 120)
    net = network()
    steps(net, batch())
    for parameters in found.values():
        for one, other in zip(parameters, net.parameters(), strict=True):
            # Sums are taken in another order: some hundred numbers below ten, in each of two steps.
            assert (one - other).abs().max() <= 1000 * torch.finfo(torch.float64).eps


if __name__ == "__main__":
    main(worker)
