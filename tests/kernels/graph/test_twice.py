"""Gradients of gradients: those of stock, or refused in one line with the way out; create_graph alone is allowed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from actfit.kernels.errors import KernelError
from tests.kernels.graph.nets import assert_same, batch, loss_of, net, pair


def penalty(model: nn.Module, x: Tensor) -> Tensor:
    """That of WGAN-GP and R1: on the norm of the gradient of the input."""
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    return gradient.square().sum()


def hessian_product(model: nn.Module, x: Tensor) -> Tensor:
    gradients = torch.autograd.grad(model(x).square().sum(), list(model.parameters()), create_graph=True)
    made: Tensor = torch.stack([gradient.sum() for gradient in gradients]).sum()
    return made


def adapted(model: nn.Module, x: Tensor) -> Tensor:
    """The loss by weights after a step of MAML."""
    weights = dict(model.named_parameters())
    gradients = torch.autograd.grad(model(x).square().mean(), list(weights.values()), create_graph=True)
    fast = {name: p - 0.1 * gradient for (name, p), gradient in zip(weights.items(), gradients, strict=True)}
    made: Tensor = torch.func.functional_call(model, fast, (x,)).square().mean()
    return made


# Each weight's gradient is a sum of two or three parts, which stock adds up in another order.
ROUNDING = 8 * torch.finfo(torch.float32).eps
LOSSES = pytest.mark.parametrize("loss", [penalty, hessian_product, adapted])


def off(ours: nn.Module, stock: nn.Module) -> float:
    pairs = zip(ours.parameters(), stock.parameters(), strict=True)
    return max(float((p.grad - q.grad).norm() / q.grad.norm()) for p, q in pairs if q.grad is not None and q.grad.any())


@LOSSES
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_exact_blocks_give_those_of_stock(loss: Callable[[nn.Module, Tensor], Tensor], compiled: bool) -> None:
    stock, ours, _ = pair(net(layers=3), compiled=compiled)
    for _ in range(2):
        of_each = []
        for model in (stock, ours):
            model.zero_grad()
            of_each.append(loss(model, batch()))
            of_each[-1].backward()
        assert torch.equal(*of_each) or compiled
        torch.testing.assert_close(*of_each)
        assert off(ours, stock) < ROUNDING


class Beside(nn.Module):
    """A block of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        made: Tensor = torch.tanh(self.inner(h)) * x
        return made


class Dependent(nn.Module):
    """One input of a block is made of the other, as by a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Beside(), Beside()])

    def forward(self, x: Tensor) -> Tensor:
        h = x * 2
        for block in self.blocks:
            x = block(h, h.sin() + x)
        return x


@LOSSES
def test_inputs_of_which_one_is_made_of_another(loss: Callable[[nn.Module, Tensor], Tensor]) -> None:
    stock, ours, _ = pair(Dependent())
    of_each = [loss(model, batch()) for model in (stock, ours)]
    torch.testing.assert_close(*of_each)
    for made in of_each:
        made.backward()
    assert off(ours, stock) < ROUNDING


def test_hooks_of_weights_are_called_once() -> None:
    calls = []
    _, ours, _ = pair()
    ours[0].up.weight.register_hook(calls.append)
    torch.autograd.grad(loss_of(ours), list(ours.parameters()), create_graph=True)
    assert len(calls) == 1


def test_autocast_of_the_gradient_alone() -> None:
    """Forward did not run under it, and does not when it runs once more."""
    of_each = []
    for model in pair()[:2]:
        x = batch().requires_grad_()
        loss = model(x).square().sum()
        with torch.autocast("cpu", torch.bfloat16):
            of_each.append(torch.autograd.grad(loss, x, create_graph=True)[0])
    assert torch.equal(*of_each)


def test_after_a_function_that_somebody_else_compiled() -> None:
    """Its node stays as it is: the block between, of whose results none has a gradient, has none of its own."""
    _, ours, _ = pair(nn.Sequential(Picks(), Picks()))
    compiled = torch.compile(lambda x: (x.sin(), x.cos()), backend="aot_eager")
    x = batch().requires_grad_()
    sine, _ = compiled(x)
    ours(sine)
    sine.sum().backward()
    assert torch.equal(x.grad, x.cos())


class Picks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).argmax(-1, keepdim=True) * torch.ones(64)


def test_three_times() -> None:
    stock, ours, _ = pair(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)))
    of_each = []
    for model in (stock, ours):
        made = x = batch().requires_grad_()
        made = model(made).square().sum()
        for _ in range(3):
            (gradient,) = torch.autograd.grad(made, x, create_graph=True)
            made = gradient.square().sum() * 1e-3
        made.backward()
        of_each.append(made)
    torch.testing.assert_close(*of_each)
    assert off(ours, stock) < 4 * ROUNDING  # which each time adds to


def with_bits(model: nn.Module, x: Tensor) -> tuple[nn.Module, nn.Module]:
    return pair(model, bits=8)[:2]


def with_dropout(model: nn.Module, x: Tensor) -> tuple[nn.Module, nn.Module]:
    return pair(net(dropout=0.1))[:2]


def under_autocast(model: nn.Module, x: Tensor) -> tuple[nn.Module, nn.Module]:
    stock, ours, _ = pair(model)
    for each in (stock, ours):
        each.forward = torch.autocast("cpu", torch.bfloat16)(each.forward)  # type: ignore[method-assign]
    return stock, ours


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


class WithFunction(Beside):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        made: Tensor = Doubled.apply(self.inner(x).tanh())
        return made


def with_functions(model: nn.Module, x: Tensor) -> tuple[nn.Module, nn.Module]:
    return pair(nn.Sequential(WithFunction(), WithFunction()))[:2]


def with_batch_norms(model: nn.Module, x: Tensor) -> tuple[nn.Module, nn.Module]:
    return pair(nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.GELU()))[:2]


@LOSSES
@pytest.mark.parametrize("made", [with_bits, with_dropout, with_batch_norms, with_functions, under_autocast])
def test_refused_with_the_way_out(made: Any, loss: Callable[[nn.Module, Tensor], Tensor]) -> None:
    _, ours = made(net(), batch())
    with pytest.raises(KernelError, match=r"a gradient of a gradient must go through .* call remove\(\) of the handle"):
        loss(ours, batch()).backward()


def test_after_its_handle_is_removed() -> None:
    stock, ours, handle = pair(bits=8)
    loss = penalty(ours, batch())
    with pytest.raises(KernelError):
        loss.backward()
    handle.remove()
    for model in (stock, ours):
        model.zero_grad()
        penalty(model, batch()).backward()
    assert_same(ours, stock)


@pytest.mark.parametrize("options", [{}, {"bits": 8}, {"bits": 8, "compiled": True}], ids=str)
@pytest.mark.parametrize("frozen", [False, True])
def test_by_an_input_alone(options: dict[str, Any], frozen: bool) -> None:
    """Which autograd reaches beside the block, too: nothing of what goes through the block may be left out."""
    made = net()
    made.requires_grad_(not frozen)
    stock, ours, _ = pair(made, **options)
    of_each = []
    for model in (stock, ours):
        x = batch().requires_grad_()
        h = model[0](x)
        (gradient,) = torch.autograd.grad(model[1](h * 1).square().sum(), h, create_graph=True)
        total = gradient.square().sum() + x.square().sum() + h.sum()
        for given in (x, h):
            if model is ours and options:
                with pytest.raises(KernelError, match="a gradient of a gradient must"):
                    torch.autograd.grad(total, given, retain_graph=True)
            else:
                of_each.append(torch.autograd.grad(total, given, retain_graph=True)[0])
    if not options:
        for ours_, stocks in zip(of_each[2:], of_each[:2], strict=True):
            assert (ours_ - stocks).norm() < ROUNDING * stocks.norm()


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
