"""Gradients of gradients: refused in one line with the way out; create_graph alone is no reason to refuse."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from actfit.kernels.errors import KernelError
from tests.kernels.graph.nets import assert_same, batch, net, pair


def penalty(model: nn.Module, x: Tensor) -> Tensor:
    """That of WGAN-GP and R1: on the norm of the gradient of the input."""
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    return gradient.square().sum()


def hessian_product(model: nn.Module, x: Tensor) -> Tensor:
    gradients = torch.autograd.grad(model(x).square().sum(), list(model.parameters()), create_graph=True)
    made: Tensor = torch.stack([gradient.sum() for gradient in gradients]).sum()
    return made


@pytest.mark.parametrize("loss", [penalty, hessian_product])
@pytest.mark.parametrize("bits", [None, 8])
def test_refused_with_the_way_out(loss: Callable[[nn.Module, Tensor], Tensor], bits: int | None) -> None:
    stock, ours, handle = pair(bits=bits)
    expected, value = loss(stock, batch()), loss(ours, batch())
    if bits is None:
        assert torch.equal(value, expected)
    with pytest.raises(KernelError, match=r"gradient of a gradient .* call remove\(\) of its handle"):
        value.backward()
    handle.remove()
    ours.zero_grad()
    expected.backward()
    loss(ours, batch()).backward()
    assert_same(ours, stock)


@pytest.mark.parametrize("options", [{}, {"bits": 8}, {"bits": 8, "compiled": True}], ids=str)
@pytest.mark.parametrize("frozen", [False, True])
def test_refused_by_an_input_alone(options: dict[str, Any], frozen: bool) -> None:
    """Which autograd reaches beside the block, too: there it would leave out what goes through the block."""
    made = net()
    made.requires_grad_(not frozen)
    _, ours, _ = pair(made, **options)
    x = batch().requires_grad_()
    h = ours[0](x)
    (gradient,) = torch.autograd.grad(ours[1](h).square().sum(), h, create_graph=True)
    total = gradient.square().sum() + x.square().sum() + h.sum()
    for given in (x, h):
        with pytest.raises(KernelError, match="gradient of a gradient"):
            torch.autograd.grad(total, given, retain_graph=True)


def test_beside_what_is_compressed() -> None:
    """A part that is left out may be differentiated twice, as a critic beside a generator."""
    generator, critic = net(), net()
    stock, ours, _ = pair(generator)
    of_each = []
    for model in (stock, ours):
        critic.zero_grad()
        (penalty(critic, model(batch()).detach()) + critic(model(batch())).sum()).backward()
        of_each.append([p.grad.clone() for p in critic.parameters()])
    assert_same(ours, stock)
    assert all(torch.equal(a, b) for a, b in zip(*of_each, strict=True))


@pytest.mark.parametrize("retained", [False, True])
def test_create_graph_alone(retained: bool) -> None:
    """As in libraries that always pass it; the gradients are right, and may be used."""
    stock, ours, _ = pair()
    for model in (stock, ours):
        x = batch().requires_grad_()
        loss = model(x).square().sum()
        gradients = torch.autograd.grad(
            loss, [x, *model.parameters()], create_graph=True, retain_graph=retained or None
        )
        for p, gradient in zip(model.parameters(), gradients[1:], strict=True):
            p.grad = gradient.detach()
    assert_same(ours, stock)
