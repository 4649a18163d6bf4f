"""Gradients of logits that wait, and their changes in place, are those of stock, or refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from actfit import KernelError
from tests.kernels.head.heads import CLASSES, ROWS, inputs, pair, targets


def test_logits_beside_their_loss_are_right() -> None:
    """A metric after the loss makes them; a term of the loss beside it has its gradient."""
    both = pair()
    x, y = inputs()
    for layer, values in ((both.stock, x), (both.ours, y)):
        logits = layer(values)
        (F.cross_entropy(logits, targets()) + 1e-3 * torch.logsumexp(logits, -1).square().mean()).backward()
    torch.testing.assert_close(y.grad, x.grad, rtol=1e-10, atol=1e-13)  # two sums of 2048 terms in float64
    torch.testing.assert_close(both.ours.weight.grad, both.stock.weight.grad, rtol=1e-10, atol=1e-13)


class Through(torch.autograd.Function):
    """An operation below Python's functions, as DDP's sink."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def test_a_function_of_autograd_gets_numbers_and_gives_a_gradient() -> None:
    both = pair()
    x, y = inputs()
    expected, made = Through.apply(both.stock(x)), Through.apply(both.ours(y))
    assert torch.equal(made, expected)
    expected.square().sum().backward()
    made.square().sum().backward()
    assert both.same(x, y)


@pytest.mark.parametrize("call", ["register_hook", "retain_grad"])
def test_gradients_of_logits_are_seen_before_the_loss_and_refused_after(call: str) -> None:
    both, seen = pair(), []
    logits = both.ours(inputs()[0])
    if call == "register_hook":
        logits.register_hook(seen.append)
    else:
        logits.retain_grad()
    F.cross_entropy(logits, targets()).backward()
    grad = seen[0] if call == "register_hook" else logits.grad
    assert grad.shape == (ROWS, CLASSES)
    late = both.ours(inputs()[0])
    F.cross_entropy(late, targets())
    with pytest.raises(KernelError, match=rf"^logits must be whole for {call}, got a loss of them computed in chunks"):
        late.register_hook(print) if call == "register_hook" else late.retain_grad()


def halved(logits: Tensor) -> Tensor:
    """A copy of other numbers, which is changed."""
    made = logits / 2.0
    made[:, 0] = -9.0
    return made


def through_rows(logits: Tensor) -> Tensor:
    logits[:100].zero_()
    return logits


def few_rows(logits: Tensor) -> Tensor:
    logits[0:2].fill_(3.0)
    return logits


def before(change: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    """Another shape, of logits that change afterwards."""

    def changed(logits: Tensor) -> Tensor:
        flat = logits.view(-1, CLASSES)
        change(logits)
        return flat

    return changed


def copied_before(logits: Tensor) -> Tensor:
    """A copy of what is changed afterwards."""
    copied = logits * 1.0
    logits.zero_()
    return copied


CHANGED: dict[str, Callable[[Tensor], Tensor]] = {
    "an entry": lambda logits: (logits.__setitem__((slice(None), 0), -10.0), logits)[1],
    "a copy": halved,
    "rows": through_rows,
    "few rows": few_rows,
    "a class": before(lambda logits: logits.select(1, 3).fill_(-50.0)),
    "all, after a view": before(lambda logits: logits.mul_(2)),
    "by a function": before(lambda logits: F.relu(logits, inplace=True)),
    "its data": before(lambda logits: logits.data[:, 3].fill_(-50.0)),
    "detached": before(lambda logits: logits.detach()[:, 3].fill_(-50.0)),
    "after a copy": copied_before,
}


@pytest.mark.parametrize("changed", CHANGED)
def test_a_change_in_place_reaches_what_it_reaches_in_stock(changed: str) -> None:
    both = pair()
    x, y = inputs()
    losses = [F.cross_entropy(CHANGED[changed](layer(values)), targets()) for layer, values in both.with_each(x, y)]
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    assert both.same(x, y)


@pytest.mark.parametrize("call", ["register_hook", "retain_grad", "a hook of several"])
def test_gradients_of_logits_that_have_another_shape(call: str) -> None:
    both, results = pair(), []
    for layer, values in both.with_each(*inputs()):
        seen: list[Any] = []
        logits = layer(values)
        flat = logits.view(-1, CLASSES)
        match call:
            case "register_hook":
                logits.register_hook(lambda grad: grad * 2)
            case "retain_grad":
                logits.retain_grad()
            case "a hook of several":
                torch.autograd.graph.register_multi_grad_hook((logits,), seen.extend)
        F.cross_entropy(flat, targets()).backward()
        results.append([values.grad, *seen, *([logits.grad] if call == "retain_grad" else [])])
    assert len(results[0]) == len(results[1]) == (1 if call == "register_hook" else 2)
    assert all(torch.equal(*each) for each in zip(*results, strict=True))


def test_a_gradient_of_a_loss_in_chunks_by_its_logits_is_refused() -> None:
    logits = pair().ours(inputs()[0])
    loss = F.cross_entropy(logits, targets())
    with pytest.raises(KernelError, match=r"^logits must be whole for grad, got a loss of them computed in chunks"):
        torch.autograd.grad(loss, logits, allow_unused=True)


def test_what_is_derived_without_gradients_has_none() -> None:
    both = pair()
    for layer, values in both.with_each(*inputs()):
        logits = layer(values)
        with torch.no_grad():
            flat = logits.view(-1, CLASSES)
        F.cross_entropy(flat, targets()).backward()
        assert layer.weight.grad is None


def test_forward_mode_runs_the_layer_itself() -> None:
    x = inputs()[0].detach()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        tangents = [forward_ad.unpack_dual(layer(dual)).tangent for layer in pair()[:2]]
    assert torch.equal(*tangents)
