"""Random programs of tensors, for comparing a changed graph of autograd with the unchanged one.

A program has a 6x6 input `x` that goes through matrix products, element-wise operations with one and two operands,
in-place operations, views, dropout, constants, pieces of tensors and their like, and gives a number. Values stay small,
so that gradients stay finite.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SIZE = 6
CONSTANT = torch.linspace(0.1, 0.9, SIZE * SIZE, dtype=torch.float64).view(SIZE, SIZE)

UNARY: list[Callable[[Tensor], Tensor]] = [
    torch.tanh,
    torch.sigmoid,
    F.softplus,
    lambda t: torch.exp(-t.abs()),
    F.gelu,
    lambda t: F.gelu(t, approximate="tanh"),
    F.silu,
    F.mish,
    torch.sin,
    torch.abs,
    F.relu,
    F.elu,
    F.softsign,
    F.tanhshrink,
    F.hardtanh,
    F.logsigmoid,
    F.hardswish,
    lambda t: F.leaky_relu(t, 0.1),
    lambda t: t * 0.5,
    lambda t: t + 1,
    lambda t: 1 - t,
    lambda t: -t,
    lambda t: t / 3,
    lambda t: t.square(),
    lambda t: torch.tanh(t).pow(3),
    lambda t: 2 / (t * t + 1),
    lambda t: 0.5 ** torch.tanh(t),
    lambda t: t.clamp(-1, 1),
    lambda t: torch.where(t > 0, t, 0.1 * t),
    lambda t: t.masked_fill(t < -0.5, 0.25),
    lambda t: F.dropout(t, 0.3),
    lambda t: t * CONSTANT,
    lambda t: t / (CONSTANT + 1),
    lambda t: t + CONSTANT[0],
    lambda t: t * torch.sigmoid(t.detach()),
    lambda t: torch.maximum(t, CONSTANT),
    lambda t: torch.log1p(t * t),
    lambda t: torch.sqrt(t * t + 1),
    lambda t: t * torch.tanh(F.softplus(t)),
    lambda t: 0.5 * t * (1 + torch.tanh(0.8 * (t + 0.044715 * torch.pow(torch.tanh(t), 3)))),
]
BINARY: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: torch.tanh(a) * b,
    torch.add,
    torch.sub,
    lambda a, b: a / (b * b + 1),
    lambda a, b: torch.where(a > b, a, b),
    torch.minimum,
    lambda a, b: torch.cat([a, b])[::2],
]
IN_PLACE: list[Callable[[Tensor], Tensor]] = [
    lambda t: t.mul_(0.9),
    lambda t: t.add_(0.5),
    lambda t: t.tanh_(),
    lambda t: F.relu(t, inplace=True),
    lambda t: t.clamp_(-1, 1),
    lambda t: t.copy_(t.detach() * 0.5),
    lambda t: t.__setitem__(0, 0.25) or t,
]


class Doubled(torch.autograd.Function):
    """A function that modes do not see."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


OTHER: list[Callable[[Tensor], Tensor]] = [
    lambda t: t[:, :1] * CONSTANT[:1],
    lambda t: t.t().contiguous(),
    lambda t: t.t(),
    lambda t: t.view(-1).view(SIZE, SIZE),
    lambda t: t.clone(),
    lambda t: torch.cat(t.chunk(2)[::-1]),
    lambda t: torch.cat([torch.tanh(t[:3]) * t[3:], t[:3]]),
    lambda t: t.softmax(-1),
    lambda t: t - t.mean(-1, keepdim=True),
    lambda t: t.flip(0),
    lambda t: F.layer_norm(t, (SIZE,)),
    lambda t: t * t.amax(),
]


def inputs() -> tuple[Tensor, Tensor]:
    """The same x and weight each time, as leaves."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64)
    weight = torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64) / 3
    return x.requires_grad_(), weight.requires_grad_()
