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
    in_bits = sum(tensor.bytes for tensor in kept.tensors if tensor.dtype == "uint8")
    assert in_bits == sum(tensor.bytes for tensor in saved_bytes(net, x).tensors if tensor.dtype == "uint8")
    # Inductor saves the weights of convolutions in another layout.
    weights = sum(parameter.numel() * 4 for parameter in net.parameters())
    assert kept.total <= saved_bytes(net, x).total + weights
    net.load_state_dict(stock.state_dict())
    _, got = gradients(compiled, x)
    net.load_state_dict(stock.state_dict())
    # Inductor rounds differently, so one number in some thousands gets another code, a step of 1/16 of the range away.
    assert error(got, gradients(net, x)[1]) <= 0.02


class Added(nn.Module):
    """Changes a norm's result in place by a separate statement, which torch.compile does not show."""

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


# wrapper -> the kinds of layers that it wraps individually
WRAPPERS: dict[str, tuple[type, ...]] = {
    "ddp": (),
    "fsdp2": (),
    "fsdp2 by layer": (nn.Linear, nn.LayerNorm, nn.RMSNorm),
}


def worker(rank: int, mesh: Any) -> dict[str, list[Tensor]]:
    """Trains the network in one of two processes, by each wrapper; the parameters."""
    parameters = {}
    for wrapper, layers in WRAPPERS.items():
        net = wrapped(network(), wrapper, mesh, layers)
        steps(net, batch().chunk(2)[rank])
        parameters[wrapper] = [whole(parameter) for parameter in net.parameters()]
    return parameters


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
    by_wrapper = of_two(__file__, tmp_path, 120)
    net = network()
    steps(net, batch())
    for parameters in by_wrapper.values():
        for trained, expected in zip(parameters, net.parameters(), strict=True):
            # Sums are taken in another order: some hundred numbers below ten, in each of two steps.
            assert (trained - expected).abs().max() <= 1000 * torch.finfo(torch.float64).eps


if __name__ == "__main__":
    main(worker)
