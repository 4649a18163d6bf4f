"""Errors of codes, rounded to nearest and stochastically."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kernels.approx_backprop import Compressed, PreActivation
from kernels.approx_backprop.encoding import encode, restored
from kernels.approx_backprop.layers import approximately
from kernels.approx_backprop.memory_layout import MemoryLayout
from tests.kernels.approx_backprop.layers import EPS


def test_codes_of_groups_are_as_far_off_as_half_a_step() -> None:
    for n in (2, 63, 64, 65, 1000):
        for bits in range(2, 9):
            x = torch.randn(n, dtype=torch.float64) * 100 + 7
            made = encode(x, Compressed(bits=bits), MemoryLayout.of_rows(x[:, None]))
            assert made[1].minimum is not None
            assert made[1].scale is not None
            steps = made[1].scale.double().repeat_interleave(made[0].layout.group_size)[:n]
            # Half a step; in float64 the computed place adds no rounding to float32.
            assert ((restored(*made).flatten() - x).abs() <= steps / 2 * (1 + 100 * EPS)).all()


@pytest.mark.slow
def test_stochastic_rounding_has_the_right_mean() -> None:
    torch.manual_seed(0)
    x = torch.randn(64)
    method, rounds = Compressed(bits=2, rounding="stochastic", scheme="group"), 4000
    total = torch.zeros(64)
    for _ in range(rounds):
        made = encode(x, method, MemoryLayout.of_rows(x[:, None]))
        total += restored(*made).flatten()
    step = float(made[1].scale)  # type: ignore[arg-type]
    # A mean of `rounds` numbers that are off by a deviation of at most half a step; five deviations in 64 places.
    assert ((total / rounds - x).abs() <= 5 * step / 2 / rounds**0.5).all()


@pytest.mark.slow
@pytest.mark.parametrize("slope", [0.0, 0.2, -0.5])
@pytest.mark.parametrize("bits", [2, 4])
def test_stochastic_rounding_has_the_right_mean_behind_a_relu(bits: int, slope: float) -> None:
    """A norm, too, whose codes the linear layer saves. The code of a number above 0 may decode to one below 0."""
    torch.manual_seed(0)
    norm, linear = nn.BatchNorm1d(4), nn.Linear(4, 1, bias=False)
    norm.bias.data.uniform_(-1, 1)
    act = nn.LeakyReLU(slope) if slope else nn.ReLU()
    x, rounds = torch.randn(64, 4, requires_grad=True), 400
    h = act(norm(x)).detach()
    options = {"bits": bits, "scheme": "group", "rounding": "stochastic"}
    layer = PreActivation(norm, act, linear, **options)
    a = F.batch_norm(x, None, None, training=True).detach()
    steps = encode(a, Compressed(**options), MemoryLayout.of(a))[1].scale
    assert steps is not None
    # With a gradient of 1, dW is the sum of what codes stand for: of 64 numbers, each off by a deviation of at most
    # half a step, times a slope of at most 1; five deviations of the mean, in four places.
    allowed = 5 * 64**0.5 * steps.float() / 2 / rounds**0.5
    total = torch.zeros(1, 4)
    for _ in range(rounds):
        (dweight,) = torch.autograd.grad(layer(x).sum(), linear.weight)
        total += dweight
    assert ((total / rounds - h.sum(0)).abs() <= allowed).all()


@pytest.mark.parametrize(("bits", "deviation"), [(2, 0.53), (4, 0.15), (8, 0.012)])
def test_a_gains_gradient_is_not_shrunk_by_rounding_to_nearest(bits: int, deviation: float) -> None:
    """With a gradient of a itself, dgamma is the sum of a * (what codes stand for): of numbers from N(0, 1), N.

    By 2 bits it was 0.883 of that, by 4 0.995, by what lies beyond the ends.
    """
    generator = torch.Generator().manual_seed(0)
    n = 1 << 18
    norm = nn.BatchNorm1d(1)
    x = torch.randn(n, 1, generator=generator)
    a = F.batch_norm(x, None, None, training=True)
    y = approximately(norm, x.requires_grad_(), Compressed(bits=bits))
    (dgain,) = torch.autograd.grad(y, norm.weight, a)
    # `deviation` is above that of a * (q(a) / shrinkage - a), whose second factor is off by half a step but for the
    # ends: 0.527, 0.145 and 0.0113. Five of the mean's.
    assert abs(float(dgain) / n - 1) <= 5 * deviation / n**0.5


def test_shrinkage_is_that_of_a_normal_distribution() -> None:
    """Against the definition: E[x q(x)], by sums over quantiles of N(0, 1)."""
    count = 1 << 20
    x = torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)
    for bits, clip in ((2, None), (4, None), (8, None), (3, 0.1), (5, 20)):
        method = Compressed(bits=bits, clip=clip)
        half = 2 ** (method.bits - 1)
        codes = (x * (2**method.bits / (2 * method.reach))).floor().clamp(-half, half - 1)
        values = (codes + 0.5) * (2 * method.reach / 2**method.bits)
        # Quantiles in the middle of equal shares leave out some 4 / count of what lies in the tails.
        assert abs(float((x * values).mean()) - method.shrinkage) <= 20 / count * method.reach


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_largest_numbers_of_float16(bits: int) -> None:
    x = torch.randn(8, 64).half()
    x[0, 0], x[1, 0] = 65504, -65504
    made = encode(x, Compressed(bits=bits), MemoryLayout.of_rows(x))
    assert restored(*made).isfinite().all()
