"""Small models in plain PyTorch: the memory blog's MLP and block, and VGG."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PLAIN = (nn.ReLU, nn.ReLU6, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Sigmoid, nn.Tanh, nn.Softplus)
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {kind.__name__.lower(): kind for kind in PLAIN}
ACTIVATIONS |= {"leaky_relu": nn.LeakyReLU, "gelu_tanh": partial(nn.GELU, approximate="tanh")}
VGG_STAGES = {11: (1, 1, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}  # Simonyan, Zisserman 2014, table 1


class MLP(nn.Module):
    """The memory blog's MLP: Linear, activation, Linear; four times as wide inside."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, 4 * config.width)
        self.act = ACTIVATIONS[config.hidden_act]()
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))


class Attention(nn.Module):
    """Causal self-attention, by torch's fused function or step by step."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads, self.attention = config.heads, config.attention
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, width = x.shape
        parts = self.qkv(x).view(batch, seq, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        if self.attention == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            future = torch.ones(seq, seq, dtype=torch.bool, device=x.device).triu(1)
            scores = (q @ k.mT) * q.shape[-1] ** -0.5
            y = scores.masked_fill(future, -torch.inf).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    """The memory blog's transformer block: attention and MLP, each on a normalised input and added to it."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(config.width), Attention(config)
        self.mlp_norm, self.mlp = nn.LayerNorm(config.width), MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


def vgg(config: Any) -> nn.Sequential:
    """VGG as in torchvision, without batch normalisation; its ReLUs work in place."""

    def act() -> nn.Module:
        return nn.ReLU(inplace=True) if config.hidden_act == "relu" else ACTIVATIONS[config.hidden_act]()

    layers: list[nn.Module] = []
    before = 3
    for channels, convolutions in zip((64, 128, 256, 512, 512), VGG_STAGES[config.depth], strict=True):
        for _ in range(convolutions):
            layers += [nn.Conv2d(before, channels, 3, padding=1), act()]
            before = channels
        layers.append(nn.MaxPool2d(2, 2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(512 * 7 * 7, config.hidden), act(), nn.Dropout()]
    layers += [nn.Linear(config.hidden, config.hidden), act(), nn.Dropout(), nn.Linear(config.hidden, 1000)]
    return nn.Sequential(*layers)
