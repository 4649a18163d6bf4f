"""Small networks for plans, in each of which tensors are saved by many kinds of functions."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attending(nn.Module):
    """Attention and a gate, each after a norm."""

    def __init__(self, width: int = 32, head_count: int = 2) -> None:
        super().__init__()
        self.head_count = head_count
        self.first, self.second = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up, self.down = nn.Linear(width, 64), nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.head_count, -1)).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1)
        )
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        h = self.second(x)
        result: Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return result


def text(layers: int = 2, dropout: float = 0.0) -> tuple[nn.Module, tuple[Tensor]]:
    """Layers of attention; four samples of 64 tokens."""
    torch.manual_seed(0)
    return nn.Sequential(*(Attending() for _ in range(layers)), nn.Dropout(dropout)), (torch.randn(4, 64, 32),)


def image() -> tuple[nn.Module, tuple[Tensor]]:
    """Convolutions, batch norms, ReLU; four samples of 16 x 16."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for features in (3, 16, 16, 16):
        layers += [nn.Conv2d(features, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 10)), (torch.randn(4, 3, 16, 16),)


def mlp() -> tuple[nn.Module, tuple[Tensor]]:
    """Linear layers and GELU; 128 samples."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.Tanh()]
    return nn.Sequential(*layers), (torch.randn(128, 64),)


NETS = {"text": text, "image": image, "mlp": mlp}


def gradient(model: nn.Module, inputs: Any, weights: Tensor | None = None) -> list[Tensor]:
    """Of a sum of the output in which every element has a weight of its own."""
    output = model(*inputs)
    if weights is None:
        weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    return list(torch.autograd.grad((output * weights).sum(), list(model.parameters())))
