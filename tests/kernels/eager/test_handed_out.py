"""Results of sigmoid and the like that outputs of forward are made of: a loss outside divides by the outputs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels import convert
from tests.kernels.eager.nets import Net, error

# With 8 bits a rounding error is .0054 of a group's deviation; two tensors on the way to the gradient have codes.
SMALL = 0.0054 * 2**0.5
OTHERS = torch.arange(64).expand(256, 64).flip(1)
MASK = (torch.rand(256, 64, generator=torch.Generator().manual_seed(1)) < 0.5).float() + 1e-3


class Slots:
    """An output whose tensor is found in no container."""

    __slots__ = ("p",)

    def __init__(self, p: Tensor) -> None:
        self.p = p


def written(h: Tensor) -> Tensor:
    p = torch.zeros(256, 64)
    p[:, :32] = h[:, :32].sigmoid() * 1.0
    p[:, 32:] = h[:, 32:].sigmoid() * 1.0
    return p


OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "casts": lambda h: h.sigmoid().double().float(),
    "cat": lambda h: torch.cat([h[:, :32].sigmoid(), F.softmax(h[:, 32:], -1)], 1),
    "stack": lambda h: torch.stack([1 - h.sigmoid(), h.sigmoid()], 1),
    "product": lambda h: h.sigmoid() * h.flip(1).sigmoid(),
    "square": lambda h: h.sigmoid() ** 2,
    "written out": lambda h: h.exp() / h.exp().sum(-1, keepdim=True),
    "mean of two": lambda h: (F.softmax(h, -1) + F.softmax(h.flip(1), -1)) / 2,
    "scaled": lambda h: 0.9 * h.sigmoid() + 1e-6,
    "gather": lambda h: h.sigmoid().gather(1, OTHERS),
    "contiguous": lambda h: h.sigmoid().t().contiguous().t(),
    "where": lambda h: torch.where(h > 0, h.sigmoid(), h.sigmoid() + 1e-9),
    "mask": lambda h: F.softmax(h, -1) * MASK,
    "slots": lambda h: Slots(h.sigmoid()),
    "written": written,
    "after the input had a code": lambda h: h.sigmoid().double() + 0 * F.gelu(h),
}


def kept(function: Callable[[Tensor], Any]) -> Net:
    def forward(net: Net, x: Tensor) -> Any:
        return function(net[1](F.gelu(net[0](x))) * 25)

    torch.manual_seed(1)
    return Net(forward, nn.Linear(64, 128), nn.Linear(128, 64))


def gradient(net: Net, p_of: Callable[[Any], Tensor] = lambda output: getattr(output, "p", output)) -> list[Tensor]:
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(2))
    loss = -(p_of(net(x)) + 1e-12).log().mean()
    return list(torch.autograd.grad(loss, list(net.parameters())))


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_loss_that_divides(name: str) -> None:
    net = kept(OUTPUTS[name])
    exact = gradient(net)
    convert(net, "compress", bits=8)
    assert error(gradient(net), exact) < SMALL


def test_what_the_model_keeps_on_itself() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        net.p = (net[1](F.gelu(net[0](x))) * 25).sigmoid()
        return x

    net = Net(forward, *kept(torch.sigmoid).layers)
    exact = gradient(net, lambda _: net.p)
    convert(net, "compress", bits=8)
    assert error(gradient(net, lambda _: net.p), exact) < SMALL
