"""Codes in the graphs of a block."""

import torch
from torch import Tensor, nn

from actfit import compress


class Softmax(nn.Module):
    """Written out; the gradient of its last layer is the sum of what was saved of probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.logits, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        z = self.logits(x)
        result: Tensor = self.last((z - z.logsumexp(-1, keepdim=True)).exp())
        return result


def test_small_probabilities_have_codes_of_their_roots() -> None:
    """One is .7, the others .002 and .008: steps of 4 bits are .05, those of roots .05 (2 √.008 + .05) or less."""
    model, x = Softmax(), torch.randn(64, 64)
    with torch.no_grad():
        model.logits.weight.zero_()
        model.logits.bias[:] = torch.tensor([0.0, 1.5] * 32)
        model.logits.bias[0] = 6.0
    p = model.logits.bias.softmax(0).detach()
    handle = compress(model, bits=4)
    model(x).sum().backward()
    assert "4 bits of roots" in str(handle)
    assert isinstance(model.last.weight.grad, Tensor)
    got = model.last.weight.grad[0] / len(x)
    step = (p.max().sqrt() - p.min().sqrt()) / 15 * 1.01  # bfloat16 rounds it up
    assert ((got - p).abs() <= step * (p.sqrt() + step / 4)).all()
    assert (got - p)[1:].abs().max() < 0.2 * p[1:].max()
