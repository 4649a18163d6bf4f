"""Counting as CUDA does: dropout, statistics of norms, attention."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actfit import KernelError
from actfit.kernels.memory import peak_bytes, saved_bytes
from actfit.kernels.planning.blocks import recomputing


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dropout_keeps_a_byte_an_element_on_cuda(dtype: torch.dtype) -> None:
    net, x = nn.Dropout(0.1), torch.randn(33, 24, dtype=dtype, requires_grad=True)
    assert saved_bytes(net, x).total == x.nbytes
    assert saved_bytes(net, x, accounting="cuda").total == x.numel()
    assert saved_bytes(net.eval(), x, accounting="cuda").total == 0


def test_statistics_of_a_layer_norm_are_float32_on_cuda() -> None:
    net, x = nn.LayerNorm(24).bfloat16(), torch.randn(33, 24, dtype=torch.bfloat16, requires_grad=True)
    assert saved_bytes(net, x).total == 2 * 33 * 2
    assert saved_bytes(net, x, accounting="cuda").total == 2 * 33 * 4


class Attention(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, mask, self.dropout)


@pytest.mark.parametrize(
    ("dtype", "masked", "rows"), [(torch.bfloat16, False, 20), (torch.float32, False, 32), (torch.bfloat16, True, 32)]
)
def test_attention_keeps_no_square_on_cuda(dtype: torch.dtype, masked: bool, rows: int) -> None:
    x = torch.randn(2, 3, 20, 8, dtype=dtype, requires_grad=True)
    mask = torch.ones(20, 20, dtype=torch.bool) if masked else None
    # Output, logarithms of sums, for 32 rows at a time where the memory-efficient kernel runs; seed and offset of the
    # random numbers, of which FlashAttention has one more number; and the mask as numbers.
    seeds = 24 if rows == 20 else 16
    expected = x.nbytes + 2 * 3 * rows * 4 + seeds + (20 * 20 * x.element_size() if masked else 0)
    saved = saved_bytes(Attention(0.1), x, mask, accounting="cuda")
    assert saved.total == expected
    square = 2 * 3 * 20 * 20 * x.element_size()
    assert saved_bytes(Attention(0.1), x, mask).total > square


def test_grouped_heads_are_kept_as_they_are() -> None:
    class Grouped(nn.Module):
        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(query * 1, key * 1, key * 1, is_causal=True, enable_gqa=True)

    query = torch.randn(2, 4, 20, 8, dtype=torch.bfloat16, requires_grad=True)
    key = torch.randn(2, 2, 20, 8, dtype=torch.bfloat16, requires_grad=True)
    saved = saved_bytes(Grouped(), query, key, accounting="cuda")
    assert saved.total == 2 * query.nbytes + 2 * key.nbytes + 2 * 4 * 20 * 4 + 24


def test_peaks_are_counted_as_cuda_s_too() -> None:
    """Alive in the end: the mask, forward's output, its gradient, and that of x."""
    net, x = nn.Dropout(0.1), torch.randn(33, 24, requires_grad=True)
    assert peak_bytes(net, x, accounting="cuda") == x.numel() + 3 * x.nbytes
    assert peak_bytes(net, x) == 4 * x.nbytes
    with pytest.raises(KernelError, match="accounting must be one of as-run, cuda, got 'gpu'"):
        peak_bytes(net, x, accounting="gpu")


def test_backward_of_a_checkpoint_counts_as_forward_did() -> None:
    """It runs forward again, whose dropout must save the same mask: of one byte an element, not of four."""
    block = nn.Sequential(nn.Linear(24, 24), nn.Dropout(0.1), nn.Linear(24, 24))
    net, x = nn.Sequential(nn.Linear(24, 24), block), torch.randn(33, 24)
    with recomputing(net, ["1"]):
        assert peak_bytes(net, x, accounting="cuda") == peak_bytes(net, x) - 3 * x.numel()
