"""Norms of rows, torch's and written out: the same forward, and gradients exact to rounding with whole copies."""

import copy

import pytest
import torch
from torch import Tensor, nn

from kernels import convert, saved_bytes
from kernels.approx_backprop import Compressed, NormLinear
from kernels.approx_backprop.forwards import Approximate
from tests.kernels.approx_backprop.layers import EPS, Stock, assert_near, compared, error, plain

ROWS = {
    "layer": lambda: nn.LayerNorm(24),
    "layer, no bias": lambda: nn.LayerNorm(24, bias=False),
    "layer, plain": lambda: nn.LayerNorm(24, elementwise_affine=False),
    "layer, two dimensions": lambda: nn.LayerNorm((5, 24)),
    "rms": lambda: nn.RMSNorm(24),
    "rms, eps": lambda: nn.RMSNorm(24, eps=0.1),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("scheme", ["fused", "group"])
def test_norms_of_rows(name: str, scheme: str) -> None:
    torch.manual_seed(0)
    norm, linears = ROWS[name]().double(), [nn.Linear(24, 7).double(), nn.Linear(24, 5, bias=False).double()]
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    x = 3 * torch.randn(4, 5, 24, dtype=torch.float64) + 1
    ours = NormLinear(norm, *linears, scheme=scheme)
    # fused: sums of some hundred products. By 8 bits of 64 numbers in a range of six deviations, a step is 1/40.
    assert_near(compared(ours, Stock([norm], linears), x), 1e4 * EPS if scheme == "fused" else 0.05)


@pytest.mark.parametrize("name", ROWS)
def test_a_norm_of_a_single_row(name: str) -> None:
    norm = ROWS[name]().double()
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    ours, x = nn.Sequential(copy.deepcopy(norm)), torch.randn(norm.normalized_shape, dtype=torch.float64)
    assert len(convert(ours, "approx-backprop", scheme="fused", inputs=x).converted) == 1
    assert_near(compared(ours, norm, x), 1e4 * EPS)  # as above


def test_layers_that_take_the_same_result_of_a_norm_keep_it_once() -> None:
    x = torch.randn(128, 64, requires_grad=True)

    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.inner = nn.LayerNorm(64), nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
            for module in (self.norm, *self.inner):
                module.forward = Approximate(module, Compressed(bits=4))

        def forward(self, x: Tensor) -> Tensor:
            h = self.norm(x + 1)
            return sum(linear(h) for linear in self.inner)

    codes, ends, deviations = 128 * 64 // 2, 2 * 2 * (128 * 64 // 64), 4 * 128
    assert saved_bytes(Three(), x).total == codes + ends + deviations


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_the_eps_of_an_rms_norm_that_tells_none(dtype: torch.dtype, scale: float) -> None:
    norm = nn.RMSNorm(64).to(dtype)
    x = (scale * torch.randn(8, 64)).to(dtype)
    stock = plain(norm)
    norm.forward = Approximate(norm, Compressed(scheme="fused"))
    for computed, expected in compared(nn.Sequential(norm), stock, x):
        # Some operations, each rounded by torch.
        assert error(computed.float(), expected.float()) <= 4 * torch.finfo(dtype).eps
