"""Real codes: errors and bytes by bits, and NaN and infinity in a group."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels import saved_bytes
from kernels.eager.encoded import Bools, Groups, Logarithms, TwoNumbers
from kernels.methods.every_tensor import EveryTensor
from tests.kernels.eager.nets import Net, converted, error, gradients

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


class Gated(nn.Module):
    """A block of a language model, without its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate, self.up, self.down = (
            nn.RMSNorm(64),
            nn.Linear(64, 128),
            nn.Linear(64, 128),
            nn.Linear(128, 64),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)), (128, 64)),
    "gated": (lambda: nn.Sequential(nn.Linear(64, 64), Gated(), Gated()), (128, 64)),
    "transformer": (lambda: nn.TransformerEncoderLayer(64, 4, 128, 0.0, "gelu", batch_first=True), (4, 64, 64)),
    "convolutions": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.SiLU()), *(nn.Conv2d(16, 16, 3), nn.GroupNorm(4, 16))
        ),
        (8, 3, 16, 16),
    ),
}


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("name", MODELS)
def test_errors_by_bits(name: str, rounding: str) -> None:
    """A step is 1 / (2^bits - 1) of a range: with 8 bits 17 times smaller than with 4. Errors are proportional to it,
    up to a third for some thousand numbers, as other bits give other rounding errors."""
    make, shape = MODELS[name]
    stock, x = make(), torch.randn(shape)
    forward, expected = gradients(stock, x)
    errors = []
    for bits in (4, 8):
        output, got = gradients(converted(stock, bits=bits, rounding=rounding), x)
        torch.testing.assert_close(output, forward, rtol=0, atol=0)
        errors.append(error(got, expected))
    assert 0 < errors[1] < 0.01
    assert 17 * 2 / 3 < errors[0] / errors[1] < 17 * 4 / 3


@pytest.mark.parametrize("name", MODELS)
def test_bytes_by_bits(name: str) -> None:
    """Less than half of stock's at 8 bits; fewer bits take no more bytes."""
    make, shape = MODELS[name]
    stock, x = make(), torch.randn(shape)
    kept = [int(saved_bytes(converted(stock, bits=bits), x)) for bits in (2, 4, 6, 8)]
    assert kept == sorted(kept)
    assert kept[-1] < int(saved_bytes(stock, x)) / 2


def test_bytes_are_those_of_the_codes() -> None:
    """A linear layer saves its input: b/8 bytes per element with b bits, and 4 per group of 128."""
    net = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 64))
    for bits in range(2, 9):
        assert int(saved_bytes(converted(net, bits=bits), torch.randn(128, 64))) == 128 * 256 * bits / 8 + 256 * 4


def test_an_input_that_wants_a_gradient_is_no_parameter() -> None:
    """Results computed from it and from parameters are coded."""
    net = converted(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)))
    x = torch.randn(128, 64)
    assert int(saved_bytes(net, x.clone().requires_grad_())) == int(saved_bytes(net, x))


def test_what_a_checkpoint_made_without_gradients_is_coded() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        return net[1](torch.utils.checkpoint.checkpoint(net[0], x, use_reentrant=True))

    net = Net(forward, nn.Linear(64, 256), nn.Linear(256, 64))
    x = torch.randn(128, 64, requires_grad=True)
    assert int(saved_bytes(converted(net), x)) == 128 * 256 // 2 + 256 * 4


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 127, 128, 129, 1000])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("mean", [0, 8])
def test_groups(dtype: torch.dtype, count: int, bits: int, rounding: str, mean: float) -> None:
    """Within half a step or, stochastic, a step of 1 / (2^bits - 1) of the range; bfloat16 adds 2^-7 of the largest."""
    x = (torch.randn(count) + mean).to(dtype)
    code = Groups(x, EveryTensor(bits=bits, rounding=rounding))
    decoded = code.decode(code.hand_over())
    assert decoded.dtype == dtype
    for part, again in zip(x.double().split(128), decoded.double().split(128), strict=True):
        largest, length = float(part.abs().max()), float(part.max() - part.min())
        shares = {"stochastic": 1 / (2**bits - 1), "nearest": 0.5 / (2**bits - 1)}
        most = (length + largest / 128) * shares[rounding] * (1 + 1 / 128)
        assert float((part - again).abs().max()) <= most + largest * max(torch.finfo(dtype).eps, 1e-6)


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_zeros_among_numbers_above_zero_stay_zeros(bits: int) -> None:
    """For example zeros of a masked softmax, whose errors would add up."""
    x = torch.rand(1000) * (torch.arange(1000) % 3 == 0)
    code = Groups(x, EveryTensor(bits=bits))
    assert (code.decode(code.hand_over())[x == 0] == 0).all()


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_makes_its_group_so(wrong: float) -> None:
    """All 128 numbers of its group and no others: a loss or gradient then visibly becomes NaN."""
    x = torch.randn(256)
    x[100] = wrong
    for kind in (Groups, lambda x, method: Logarithms(x.where(x.isfinite(), math.nan).clamp(max=0), method)):
        code = kind(x, EveryTensor())
        expected = torch.zeros(256, dtype=torch.bool)
        expected[:128] = True
        torch.testing.assert_close(code.decode(code.hand_over()).isnan(), expected)


def test_exact_codes() -> None:
    bits = torch.randn(1001) > 0
    noise = bits / torch.tensor(0.9)
    for code, x in [(Bools(bits), bits), (TwoNumbers(noise), noise)]:
        torch.testing.assert_close(code.decode(code.hand_over()), x, rtol=0, atol=0)


def test_signs_are_exact() -> None:
    """So a ReLU's gradient is exact with any number of bits."""
    stock, x = nn.Sequential(nn.Linear(64, 128), nn.ReLU()), torch.randn(128, 64)
    expected = gradients(stock, x)
    torch.testing.assert_close(gradients(converted(stock, bits=2), x), expected, rtol=0, atol=0)
