"""The peak of a step, counted by births and deaths, beside what the CPU's allocator gives out."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from actfit import KernelError, compress
from actfit.kernels.memory import peak_bytes
from actfit.kernels.memory.step import Living, run_step
from benchmarks.compression.meter import measured

WIDTH, ROWS, LAYERS = 256, 8192, 6
WHOLE = 4 * ROWS * WIDTH  # bytes of a tensor between blocks


def stack(layers: int = LAYERS) -> nn.Sequential:
    blocks = [(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(layers)]
    return nn.Sequential(*(layer for block in blocks for layer in block))


def allocated(model: nn.Module, x: Tensor) -> int:
    """The peak of a step by the allocator; gradients are there before."""
    gradient = torch.ones(ROWS, WIDTH)

    def loss() -> Tensor:
        return (model(x) * gradient).sum()

    loss().backward()
    return measured(loss, torch.device("cpu")).peak


@pytest.mark.slow
@pytest.mark.parametrize("bits", [None, 4, pytest.param(2, marks=pytest.mark.repeats)])
def test_the_peak_is_the_allocators(bits: int | None) -> None:
    """400 MB of activations. Between the two: the loss's product and its gradient, here ones, and codes' pieces."""
    model, x = stack(), torch.randn(ROWS, WIDTH)
    if bits:
        compress(model, bits=bits)
    assert peak_bytes(model, x) == pytest.approx(allocated(model, x), abs=4 * WHOLE)


def test_the_peak_of_a_step_by_hand() -> None:
    """One linear layer: its result, the gradient of that, of its weights, and of its input, which wants one."""
    layer, x = nn.Linear(WIDTH, WIDTH, bias=False), torch.randn(ROWS, WIDTH)
    assert peak_bytes(layer, x) == 2 * WHOLE + layer.weight.nbytes
    assert peak_bytes(layer, x.requires_grad_()) >= 3 * WHOLE
    assert layer.weight.grad is None


def test_a_batch_is_unpacked_as_by_saved_bytes() -> None:
    layer, x, weights = nn.Bilinear(8, 4, 16), torch.randn(32, 8), torch.randn(32, 4)
    peaks = {
        peak_bytes(layer, x, weights),
        peak_bytes(layer, (x, weights)),
        peak_bytes(layer, {"input1": x, "input2": weights}),
    }
    assert len(peaks) == 1


class Constant(nn.Module):
    """A model without a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


@pytest.mark.parametrize("model", [torch.exp, nn.ModuleList([nn.Linear(4, 4)])], ids=["function", "list"])
def test_what_is_no_model_is_refused(model: nn.Module) -> None:
    with pytest.raises(KernelError, match=r"^model must be a torch.nn.Module that has a forward, got"):
        peak_bytes(model, torch.ones(4))


def test_a_model_without_gradient_is_refused() -> None:
    with pytest.raises(KernelError, match="must give a tensor with a gradient"):
        peak_bytes(Constant(), torch.randn(3))
    with pytest.raises(KernelError, match="must run on fake tensors, forward and backward"):
        peak_bytes(nn.Linear(3, 4), torch.randn(5))


def test_products_are_counted_and_nothing_else():
    """Forward and backward of x W^T take 2 n k m operations each; the gradient of the input is not needed."""
    model, x = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)), torch.randn(4, 16)
    living = Living()
    run_step(living, model, (x,), {})
    assert living.operations == 2 * 4 * (2 * 16 * 32 + 3 * 32 * 8)
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    assert living.operations == counter.get_total_flops()


@pytest.mark.parametrize("groups", [1, 2])
def test_attention_is_counted_forward_and_backward(groups):
    """Two products forward, five backward, of queries and keys in full."""
    q = torch.randn(2, 4, 64, 16, requires_grad=True)
    k, v = (torch.randn(2, 4 // groups, 64, 16, requires_grad=True) for _ in range(2))
    living = Living()
    with living:
        F.scaled_dot_product_attention(q, k, v, enable_gqa=groups > 1, is_causal=True).sum().backward()
    assert living.operations == 7 * 2 * 2 * 4 * 64 * 64 * 16


def test_a_mask_that_forward_looks_into() -> None:
    """PyTorch compares it with a causal one, unless it is told."""
    model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)
    x, mask = torch.randn(2, 4, 16), nn.Transformer.generate_square_subsequent_mask(4)
    with pytest.raises(KernelError, match="say what forward looks up, as tgt_is_causal=True beside a mask"):
        peak_bytes(model, x, x, tgt_mask=mask)
    assert peak_bytes(model, x, x, tgt_mask=mask, tgt_is_causal=True) > 0
