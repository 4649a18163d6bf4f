"""Norms whose inputs have codes."""

import copy

import pytest
import torch
from torch import Tensor, nn

from actfit import compress
from actfit.kernels.graph.engine import Engine
from actfit.kernels.methods.expected_error import expected_error
from tests.kernels.graph.nets import WIDTH, batch

LAYERS, GROUP = 4, 64


class PostNorm(nn.Module):
    """As BERT's: each residual is normalised, so every gradient goes through all norms."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.norm(x + self.down(torch.tanh(self.up(x))))
        return made


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_codes_do_not_shrink_gradients_layer_by_layer(
    dtype: torch.dtype, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They add a variance of their own, by which 1/std would be too small in each norm; also in Inductor's graphs."""
    monkeypatch.setattr(Engine, "interprets", compiled)
    torch.manual_seed(0)
    stock = nn.Sequential(*(PostNorm() for _ in range(LAYERS))).to(dtype)
    ours, x = copy.deepcopy(stock), batch(512).to(dtype)
    compress(ours, bits=2, compiled=compiled)
    gradients = []
    for model in (stock, ours):
        given = x.clone().requires_grad_()
        (model(given) * batch(512).sin()).sum().backward()
        assert given.grad is not None
        assert given.grad.dtype == dtype
        gradients.append(given.grad.double().flatten())
    exact, coded = gradients
    part = float(coded @ exact / (exact @ exact))
    shrunk = (1 + expected_error(2, GROUP, "nearest") ** 2) ** (-LAYERS / 2)
    assert shrunk < 0.7
    assert abs(part - 1) < abs(part - shrunk)
