"""Patterns found in models of transformers, each in a few lines."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels import saved_bytes
from kernels.conversion import convert
from kernels.eager import Compressing
from kernels.eager.encoded import Groups, Logarithms
from kernels.eager.intervals import Interval
from kernels.eager.tensors import group_of
from kernels.methods.every_tensor import EveryTensor
from kernels.private import release

ROWS, WIDTH = 64, 256
EPS = torch.finfo(torch.float32).eps


class Of(nn.Module):
    """A function of x as a module, between linear layers."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.after(self.function(self.before(x)))
        return y


def gradients(model: nn.Module, x: Tensor, bits: int | None) -> list[Tensor]:
    """Gradients of all parameters, and of x if it requires one."""
    x = x.detach().requires_grad_(x.requires_grad)
    torch.manual_seed(1)
    report = None if bits is None else convert(model, "compress", bits=bits)
    model.zero_grad()
    model(x).square().mean().backward()
    if report is not None:
        report.revert()
    return [tensor.grad.clone() for tensor in (*model.parameters(), x) if tensor.grad is not None]


def off(model: nn.Module, x: Tensor, bits: int = 8) -> float:
    pairs = zip(gradients(model, x, bits), gradients(model, x, None), strict=True)
    return max(float((approximate - exact).norm() / exact.norm()) for approximate, exact in pairs)


def kept(model: nn.Module, x: Tensor, bits: int = 4) -> int:
    """Bytes saved by the converted model."""
    report = convert(model, "compress", bits=bits)
    try:
        return saved_bytes(model, x).total
    finally:
        report.revert()


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(ROWS, WIDTH)


CODES = ROWS * WIDTH * 4.5 / 8  # bytes of a tensor in 4 bits


def test_dropout_in_place(x: Tensor) -> None:
    assert off(Of(lambda h: F.dropout(h, 0.5, inplace=True)), x) < 0.02


def test_an_activation_in_place_of_what_is_made_of_parameters(x: Tensor) -> None:
    """From the position bias of swinv2."""
    table = nn.Parameter(torch.randn(WIDTH, WIDTH))
    model = Of(lambda h: h * F.relu(table * 2, inplace=True).sum(0))
    assert off(model, x) < 0.02


def test_an_input_that_wants_a_gradient_is_no_parameter(x: Tensor) -> None:
    """From wav2vec2, which makes its input require a gradient."""
    model = Of(F.gelu)
    assert kept(model, x.requires_grad_()) < 3 * CODES
    assert off(model, x) < 0.02


class Own(torch.autograd.Function):
    """Several calls in the forward of an autograd.Function, as in bloom: none of their results requires a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        tanh = torch.tanh(0.79788456 * x)
        return grad * 0.5 * (1 + tanh + 0.79788456 * x * (1 - tanh * tanh))


def test_what_a_function_of_its_own_makes_gets_codes(x: Tensor) -> None:
    model = Of(lambda h: Own.apply(h))
    assert kept(model, x) < 2.1 * CODES
    assert off(model, x) < 0.02


def test_a_function_of_its_own_that_was_taken_before(x: Tensor) -> None:
    """As `own = Own.apply` of a module: from torch 2.14 on nobody sees what it saves, which stays whole."""
    model = Of(Own.apply)
    assert kept(model, x) < (1.1 * CODES + 4 * x.numel() if release() >= (2, 14) else 2.1 * CODES)
    assert off(model, x) < 0.02


JUMPS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "relu6": lambda x: F.relu6(4 * x),
    "relu6, in place": lambda x: F.relu6(4 * x, inplace=True),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.25),
    "hardtanh, in place": lambda x: F.hardtanh_(x * 1, min_val=-0.5, max_val=0.25),
    "hardsigmoid": lambda x: F.hardsigmoid(8 * x),
    "clamp": lambda x: x.clamp(-0.5, 0.25),
    "clamp from below": lambda x: torch.clamp(x, min=0.125),
    "clamp_max": lambda x: torch.clamp_max(x, 0.125),
    "threshold": lambda x: F.threshold(x, 0.125, 0.5),
}


@pytest.mark.parametrize("name", JUMPS)
def test_a_jump_is_where_it_was_and_costs_a_bit(name: str, x: Tensor) -> None:
    """The derivative is constant inside an interval and outside of it, so earlier gradients are exact."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Of(JUMPS[name]).requires_grad_(False))
    assert off(model, x, bits=2) < 4 * EPS
    assert kept(model, x) <= CODES + ROWS * WIDTH / 8 + 1024


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("interval", [Interval(0.0, torch.inf), Interval(-3.0, 3.0), Interval(-torch.inf, 0.5, True)])
def test_numbers_are_moved_into_intervals_and_out_of_them(interval: Interval, dtype: torch.dtype) -> None:
    ends = [end + beside for end in (interval.low, interval.high, 0.0) for beside in (-0.5, 0.0, 0.5)]
    x = torch.tensor([end for end in ends if abs(end) < torch.inf], dtype=dtype)
    for inside in (torch.ones(x.shape, dtype=torch.bool), torch.zeros(x.shape, dtype=torch.bool)):
        assert torch.equal(interval.holds(interval.put(x, inside)), inside)
    assert torch.equal(interval.put(x, interval.holds(x)), x)


def test_hardswish_is_kept_in_few_bits(x: Tensor) -> None:
    model = Of(lambda h: F.hardswish(8 * h))
    assert kept(model, x) < 2.5 * CODES
    assert off(model, x) < 0.02


@pytest.mark.parametrize("function", [F.normalize, lambda h: h / h.norm(dim=-1, keepdim=True)])
def test_what_a_length_is_taken_of_gets_codes(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """From convnextv2 and swinv2: the pole is at length 0, and the length is exact."""
    model = Of(function)
    assert kept(model, x) < 2.5 * CODES
    assert off(model, x) < 0.02


class Biased(nn.Module):
    """Attention with a learned bias and a mask, passed by name, as in T5."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.bias = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, ROWS)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.view(1, ROWS, 4, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        bias = self.bias(x)
        bias = bias * bias.sigmoid()  # kept in few bits, as it is multiplied
        mask = torch.where(torch.ones(ROWS, ROWS, dtype=torch.bool).tril(), bias, torch.finfo(x.dtype).min)
        return F.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=mask)


def test_a_mask_with_infinities_is_made_again(x: Tensor) -> None:
    assert off(Biased(), x) < 0.03


def test_a_mask_that_cannot_be_made_again_stays_whole(x: Tensor) -> None:
    def attention(h: Tensor) -> Tensor:
        mask = torch.cat([h[:, :ROWS].tril() + torch.full((ROWS, ROWS), -torch.inf).triu(1)])
        return F.scaled_dot_product_attention(h, h, h, attn_mask=mask)

    assert off(Of(attention), x) < 0.03


def test_groups_do_not_reach_into_other_rows() -> None:
    """If possible: a row of zeros beside large rows stays exact, as a norm may multiply its errors by a million."""
    assert group_of(torch.empty(3, 5, 256)) == 128
    assert group_of(torch.empty(3, 96)) == 96
    assert group_of(torch.empty(2, 3, 5, 64).transpose(1, 2)) == 64  # a head of a token
    assert group_of(torch.empty(2, 8, 28, 28)) == 112
    assert group_of(torch.empty(2, 8, 3, 3)) == 36  # of several channels, no more than 64
    assert group_of(torch.empty(2, 8, 7, 7)) == 49
    assert group_of(torch.empty(2, 32).t()) == 32
    assert group_of(torch.empty(3, 67, 2)) == 64  # neither 67 nor 134 has a fitting divisor
    assert group_of(torch.empty(2, 3)) == 64

    torch.manual_seed(0)
    x = torch.cat([torch.zeros(1, 96), torch.randn(127, 96)]).requires_grad_()
    norm = nn.LayerNorm(96, eps=1e-12)
    exact = torch.autograd.grad(norm(x * 2).square().sum() + norm(x * 2).sum(), x)[0]
    with Compressing(EveryTensor(8), norm.parameters()):
        y = norm(x * 2)
    got = torch.autograd.grad(y.square().sum() + y.sum(), x)[0]
    assert got[0].abs().max() <= 2 * exact[0].abs().max()


@pytest.mark.parametrize("spread", [1.0, 3.0])
def test_probabilities_keep_their_sum(spread: float) -> None:
    """Within 1 % at 4 bits, and with smaller errors than codes of the logarithms."""
    torch.manual_seed(0)
    logarithms = torch.log_softmax(spread * torch.randn(64, 4096), -1).flatten()

    def apart(kind: type[Groups]) -> Tensor:
        code = kind(logarithms, EveryTensor(4))
        return (code.decode(code.hand_over()).exp() - logarithms.exp()).view(64, -1)

    assert apart(Logarithms).sum(-1).abs().mean() < 0.01
    assert apart(Logarithms).norm() < 0.9 * apart(Groups).norm()
