"""Norms of rows, torch's and written out: forward as theirs, gradients to rounding by whole copies."""

import copy

import pytest
import torch
from torch import Tensor, nn

from kernels import convert, saved_bytes
from kernels.approx_backprop import Compressed, NormLinear
from kernels.approx_backprop.forwards import Approximate
from kernels.approx_backprop.layers import why_not
from tests.kernels.approx_backprop.layers import EPS, Doubled, Stock, assert_near, compared, error, plain

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
    for one in norm.parameters():
        nn.init.normal_(one)
    x = 3 * torch.randn(4, 5, 24, dtype=torch.float64) + 1
    ours = NormLinear(norm, *linears, scheme=scheme)
    # fused: sums of some hundred products. By 8 bits of 64 numbers in a range of six deviations, a step is 1/40.
    assert_near(compared(ours, Stock([norm], linears), x), 1e4 * EPS if scheme == "fused" else 0.05)


@pytest.mark.parametrize("name", ROWS)
def test_a_norm_of_a_single_row(name: str) -> None:
    norm = ROWS[name]().double()
    for one in norm.parameters():
        nn.init.normal_(one)
    ours, x = nn.Sequential(copy.deepcopy(norm)), torch.randn(norm.normalized_shape, dtype=torch.float64)
    assert len(convert(ours, "approx-backprop", scheme="fused", inputs=x).converted) == 1
    assert_near(compared(ours, norm, x), 1e4 * EPS)  # as above


class Llama(nn.Module):
    """An RMS norm as it is written out in transformers."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.rand(width)), eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(dtype)


class LlamaRMSNorm(Llama):
    pass


class GemmaRMSNorm(Llama):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states) + hidden_states * 1e-4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_norm_that_is_written_out(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm, x = LlamaRMSNorm(64).to(dtype), torch.randn(9, 64).to(dtype)
    net, stock = nn.Sequential(norm), plain(norm)
    before = saved_bytes(Doubled(net), x.requires_grad_()).total
    norm.forward = Approximate(norm, Compressed(scheme="fused"))
    pairs = compared(net, stock, x)
    if dtype != torch.float64:  # of which torch keeps what is computed on the way in float32
        assert saved_bytes(Doubled(net), x).total <= 0.55 * before  # one tensor of two, and 1/std
    # Some dozen operations, of which autograd rounds each to the dtype; of float64, too, it computes in float32.
    assert_near(pairs, 100 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps))


def test_norms_that_compute_something_else_are_left_alone() -> None:
    assert why_not(LlamaRMSNorm(8)) == ""
    assert why_not(Llama(8)) == ""  # by another name
    assert "it is no layer or RMS norm of the last dimension" in why_not(GemmaRMSNorm(8))
    assert "it is no batch" in why_not(nn.Embedding(3, 4))


def test_layers_that_take_the_same_result_of_a_norm_keep_it_once() -> None:
    x = torch.randn(128, 64, requires_grad=True)

    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.inner = nn.LayerNorm(64), nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
            for one in (self.norm, *self.inner):
                one.forward = Approximate(one, Compressed(bits=4))

        def forward(self, x: Tensor) -> Tensor:
            h = self.norm(x + 1)
            return sum(one(h) for one in self.inner)

    codes, ends, deviations = 128 * 64 // 2, 2 * 2 * (128 * 64 // 64), 4 * 128
    assert saved_bytes(Three(), x).total == codes + ends + deviations


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_the_eps_of_an_rms_norm_that_tells_none(dtype: torch.dtype, scale: float) -> None:
    norm = nn.RMSNorm(64).to(dtype)
    x = (scale * torch.randn(8, 64)).to(dtype)
    stock = plain(norm)
    norm.forward = Approximate(norm, Compressed(scheme="fused"))
    for one, other in compared(nn.Sequential(norm), stock, x):
        assert error(one.float(), other.float()) <= 4 * torch.finfo(dtype).eps  # some operations, each rounded by torch
