"""Counting as CUDA does: dropout, statistics of norms, attention."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels.memory import saved_bytes


@pytest.mark.parametrize("fake", [True, False], ids=["fake", "real"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dropout_keeps_a_byte_an_element_on_cuda(dtype: torch.dtype, fake: bool) -> None:
    net, x = nn.Dropout(0.1), torch.randn(33, 24, dtype=dtype, requires_grad=True)
    assert saved_bytes(net, x, fake=fake).total == x.nbytes
    assert saved_bytes(net, x, fake=fake, accounting="cuda").total == x.numel()
    assert saved_bytes(net.eval(), x, fake=fake, accounting="cuda").total == 0


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


@pytest.mark.parametrize("fake", [True, False], ids=["fake", "real"])
@pytest.mark.parametrize(
    ("dtype", "masked", "rows"),
    [(torch.bfloat16, False, 20), (torch.float32, False, 32), (torch.bfloat16, True, 32)],
)
def test_attention_keeps_no_square_on_cuda(dtype: torch.dtype, masked: bool, rows: int, fake: bool) -> None:
    x = torch.randn(2, 3, 20, 8, dtype=dtype, requires_grad=True)
    mask = torch.ones(20, 20, dtype=torch.bool) if masked else None
    # Output, logarithms of sums, for 32 rows at a time where the memory-efficient kernel runs, seed and offset of
    # the random numbers; and the mask as numbers.
    expected = x.nbytes + 2 * 3 * rows * 4 + 16 + (20 * 20 * x.element_size() if masked else 0)
    saved = saved_bytes(Attention(0.1), x, mask, accounting="cuda", fake=fake)
    assert saved.total == expected
    square = 2 * 3 * 20 * 20 * x.element_size()
    assert saved_bytes(Attention(0.1), x, mask, fake=fake).total > square


def test_counting_as_cuda_has_no_backward_and_says_so() -> None:
    from kernels.memory.accounting import CudaLike

    x = torch.randn(2, 3, 20, 8, requires_grad=True)
    with CudaLike():
        y = Attention(0.0)(x)
    with pytest.raises(NotImplementedError, match="counts what forward saves"):
        y.sum().backward()
