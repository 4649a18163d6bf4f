"""Bugs found in a review, most without an error message: real codes, compared with stock's gradients."""

import gc
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels import private
from kernels.eager import Compressing
from tests.kernels.eager.nets import Net, converted, error, gradients

# With 8 bits a rounding error is .0054 of a group's deviation, for steps of a 255th of its range; gradients may have
# a few times that.
SMALL = 0.05
ROLLED = (torch.arange(64) % 8)[:, None].expand(64, 256)


@torch.jit.script
def quotient(a: Tensor, b: Tensor) -> Tensor:
    return a / b


SHARP: dict[str, Callable[[Tensor], Any]] = {
    "divide": lambda h: torch.divide(h.roll(1), h.exp()),
    "true_divide": lambda h: torch.true_divide(h.roll(1), h.exp()),
    "quotient by name": lambda h: torch.div(other=h.exp(), input=h.roll(1)),
    "operator": lambda h: torch.ops.aten.div.Tensor(h.roll(1), h.exp()),
    "operator of a step": lambda h: torch.ops.aten.clamp.default(h, -0.1, 0.1),
    "script": lambda h: quotient(h.roll(1), h.exp()),
    "addcdiv": lambda h: torch.addcdiv(h.roll(2), h.roll(1), h.exp()),
    "arccos": lambda h: torch.arccos(torch.tanh(h)),
    "aminmax": lambda h: torch.stack(torch.aminmax(h, dim=-1)),
    "nanmedian": lambda h: h.nanmedian(-1)[0],
    "scatter_reduce": lambda h: h.new_zeros(8, 256).scatter_reduce(0, ROLLED, h, "amax"),
    "copysign": lambda h: torch.copysign(h, h.roll(1)),
    "elu": lambda h: F.elu(h, alpha=3.0),
    "parts": lambda h: (lambda a, b: a.mul_(2).sin() * b.mul_(3).sin())(*torch.unsafe_chunk(h * 1, 2, -1)),
    "in place by name": lambda h: torch.relu_(input=h * 1),
    "divergence": lambda h: divergence(10 * h),
}


def divergence(h: Tensor) -> Tensor:
    """The divergence of two distributions: backward multiplies by their logarithms."""
    p, q = h.log_softmax(-1), h.roll(1, 0).log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def wide(function: Callable[[Tensor], Any]) -> Net:
    return Net(lambda net, x: function(net[0](x)), nn.Linear(256, 256))


@pytest.mark.parametrize("name", SHARP)
def test_functions(name: str) -> None:
    if name == "aminmax" and private.release() < (2, 10):
        pytest.skip("torch 2.9 has no derivative of it")
    net, x = wide(SHARP[name]), torch.randn(64, 256)
    assert error(gradients(converted(net, bits=8), x)[1], gradients(net, x)[1]) < SMALL


def test_a_mask_that_is_used_again_for_another() -> None:
    """Stock converts a mask of bools at once; a mask of numbers it saves, and so raises as we do."""

    def forward(net: Net, x: Tensor) -> Tensor:
        q = net[0](x).view(1, 4, 64, 64)
        mask = torch.ones(64, 64, dtype=torch.bool).tril()
        first = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        mask.fill_(True)
        return first + F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    net, x = Net(forward, nn.Linear(256, 256)), torch.randn(64, 256)
    assert error(gradients(converted(net, bits=8), x)[1], gradients(net, x)[1]) < SMALL

    def changed(net: Net, x: Tensor) -> Tensor:
        q, mask = net[0](x).view(1, 4, 64, 64), torch.zeros(64, 64)
        result = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        mask.fill_(1.0)
        return result

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(converted(Net(changed, nn.Linear(256, 256))), x)


def test_attention_is_computed_again_as_it_was() -> None:
    """By the backend selected in the forward pass, though backward runs outside of that context."""

    def attend(q: Tensor) -> Tensor:
        q = q.view(1, 4, 64, 64)
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)

    def within(model: nn.Module) -> Callable[[Tensor], Tensor]:
        def call(x: Tensor) -> Tensor:
            with sdpa_kernel(SDPBackend.MATH):
                return model(x)

        return call

    net, x = wide(attend), torch.randn(64, 256)
    model = converted(net, bits=8)
    expected = gradients(net, x, call=within(net))[1]
    assert error(gradients(model, x, call=within(model))[1], expected) < SMALL


def test_what_is_added_in_place_keeps_its_type() -> None:
    """A residual in bfloat16, to which a branch in float32 is added."""

    def forward(net: Net, x: Tensor) -> Tensor:
        h = net[0](x)
        b = h.bfloat16()
        y = F.gelu(h)
        b += h
        return F.linear(b, net[1].weight.bfloat16()).float() + y

    net, x = Net(forward, nn.Linear(256, 256), nn.Linear(256, 256)), torch.randn(64, 256)
    assert error(gradients(converted(net, bits=8), x)[1], gradients(net, x)[1]) < SMALL


def test_a_part_without_backward_keeps_nothing_alive() -> None:
    """For example an auxiliary head without a loss; with the garbage collector disabled."""
    alive: WeakSet[Compressing] = WeakSet()
    enter = Compressing.__enter__

    def entered(self: Compressing) -> Compressing:
        alive.add(self)
        return enter(self)

    model = converted(Net(lambda net, x: (lambda h: (net[1](h), net[2](h)))(F.gelu(net[0](x))), *linears()))
    gc.collect()
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Compressing, "__enter__", entered)
            first, second = model(torch.randn(64, 256))
            first.sum().backward()
            assert len(alive) == 1
            del first, second
            assert len(alive) == 0
    finally:
        gc.enable()


def linears() -> list[nn.Module]:
    return [nn.Linear(256, 256) for _ in range(3)]


def test_the_largest_numbers_of_float16_stay_numbers() -> None:
    net = Net(
        lambda net, x: F.silu(net[0](x).clamp(-65504, 65504).masked_fill(net.mask, -65504.0)), nn.Linear(256, 256)
    )
    net.register_buffer("mask", torch.rand(64, 256) < 0.1)
    computed = gradients(converted(net.half(), bits=8), torch.randn(64, 256).half())[1]
    assert all(bool(gradient.isfinite().all()) for gradient in computed)
