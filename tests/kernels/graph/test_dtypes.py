"""Exact means exact in each dtype: layers whose derivative is computed otherwise in 16 bits."""

import pytest
import torch
from torch import nn

from tests.kernels.graph.nets import assert_same, batch, net, pair

LAYERS = {
    "dropout": lambda: nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.1), nn.Linear(32, 32)),
    "batch norm": lambda: nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU()),
    "layer norm": lambda: nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.SiLU()),
    "softmax": lambda: nn.Sequential(nn.Linear(32, 32), nn.Softmax(-1), nn.Mish()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layer", LAYERS)
def test_exact_in_each_dtype(layer: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    stock, ours, handle = pair(nn.Sequential(*(LAYERS[layer]() for _ in range(2))).to(dtype))
    x = torch.randn(64, 32, dtype=dtype)
    for model in (stock, ours):
        torch.manual_seed(1)
        model(x).float().square().mean().backward()
    assert_same(ours, stock)
    assert not handle.stock


def test_a_block_that_is_called_twice_under_autocast_adds_up_in_float32() -> None:
    """Within one autocast stock casts a weight once, and adds up its gradients in 16 bits; else as here."""
    stock, ours, _ = pair(net(layers=1))
    for x in (batch(96), batch(97)):
        with torch.autocast("cpu", torch.bfloat16):
            stock(x).square().sum().backward()
    with torch.autocast("cpu", torch.bfloat16):
        losses = [ours(x).square().sum() for x in (batch(96), batch(97))]
    torch.stack(losses).sum().backward()
    assert_same(ours, stock)
