"""The models of `benchmarks.training`: a small GPT, a small Llama, a small ResNet and a small ViT.

`activation`, of GPT and ResNet, makes an activation module each time it is called. `blocks` may be checkpointed.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Factory = Callable[[], nn.Module]
WIDER = 4  # times: the hidden layer of a GPT's MLP over its stream
HEAD = 32  # channels of a head of attention, at most
PATCH, PLACES = 2, 16  # for a ViT: pixels along a patch, patches in an image


class Attention(nn.Module):
    """Attention over [batch, places, width] in float32 or autocast's dtype, causal or not; no dropout.

    rotary: rotate queries and keys by their places.
    """

    def __init__(self, width: int, causal: bool, rotary: bool = False) -> None:
        super().__init__()
        self.heads, self.causal, self.rotary = max(1, width // HEAD), causal, rotary
        # No biases: the keys' bias has a zero gradient, so it has no relative error.
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], 3, self.heads, -1)
        q, k, v = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4)
        if self.rotary:
            q, k = rotated(q), rotated(k)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


def rotated(x: Tensor) -> Tensor:
    """Rotary positions of [..., places, channels] (Su et al. 2021), channels paired by halves as in Llama."""
    half = x.shape[-1] // 2
    rates = 10_000.0 ** -(torch.arange(half, device=x.device) / half)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Layer(nn.Module):
    """Attention, then an MLP, each on the norm of the stream and added to it."""

    def __init__(self, width: int, activation: Factory, causal: bool = True) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, causal)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, WIDER * width), activation(), nn.Linear(WIDER * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        result: Tensor = x + self.mlp(x)
        return result


class GPT(nn.Module):
    """Logits [batch, places, classes] of the next character after each of [batch, places], int64."""

    def __init__(self, classes: int, context: int, width: int, layers: int, activation: Factory) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(classes, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Layer(width, activation) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        for table in (self.symbols, self.places):
            nn.init.normal_(table.weight, std=0.02)  # GPT-2's

    def forward(self, symbols: Tensor) -> Tensor:
        x = self.symbols(symbols) + self.places.weight[: symbols.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Gate(nn.Module):
    """SwiGLU: silu(gate(x)) * up(x), then down; 8/3 of the width hidden, for as many weights as a GPT's MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = 8 * width // 3
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return result


class LlamaLayer(nn.Module):
    """Attention with rotary positions, then a gate, each on the norm of the stream and added to it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.attention = nn.RMSNorm(width), Attention(width, causal=True, rotary=True)
        self.second, self.gate = nn.RMSNorm(width), Gate(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        result: Tensor = x + self.gate(self.second(x))
        return result


class Llama(nn.Module):
    """The same logits as `GPT`, by Llama's layers."""

    def __init__(self, classes: int, width: int, layers: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(classes, width)
        self.blocks = nn.ModuleList(LlamaLayer(width) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, classes, bias=False)
        nn.init.normal_(self.symbols.weight, std=0.02)

    def forward(self, symbols: Tensor) -> Tensor:
        x = self.symbols(symbols)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Residual(nn.Module):
    """Two 3x3 convolutions with batch norms, plus a shortcut, then the activation."""

    def __init__(self, inward: int, outward: int, activation: Factory) -> None:
        super().__init__()
        stride = 1 if inward == outward else 2
        self.first, self.second = _conv(inward, outward, 3, stride), _conv(outward, outward, 3, 1)
        self.past = nn.Identity() if inward == outward else _conv(inward, outward, 1, stride)
        self.between, self.after = activation(), activation()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.after(self.second(self.between(self.first(x))) + self.past(x))
        return result


class ResNet(nn.Module):
    """Logits [n, classes] of images [n, 1, 8, 8]; `layers` blocks of `width` channels, then as many twice as wide."""

    def __init__(self, classes: int, width: int, layers: int, activation: Factory) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(1, width, 3, 1), activation())
        widths = [width] * (layers + 1) + [2 * width] * layers
        pairs = pairwise(widths)
        self.blocks = nn.ModuleList(Residual(inward, outward, activation) for inward, outward in pairs)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


class ViT(nn.Module):
    """A transformer of `layers` layers over patches of the image, without a causal mask."""

    def __init__(self, classes: int, width: int, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, PATCH, stride=PATCH)
        self.places = nn.Parameter(0.5 * torch.randn(PLACES, width))
        self.blocks = nn.ModuleList(Layer(width, nn.GELU, causal=False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits


def _conv(inward: int, outward: int, size: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inward, outward, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(outward)
    )


def loss(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy in nats, in float32, of logits [..., classes] against whole numbers [...]."""
    return F.cross_entropy(logits.flatten(0, -2).float(), target.flatten())


def right(logits: Tensor, target: Tensor) -> float:
    """The share of `target` that has the highest logit."""
    return float((logits.argmax(-1) == target).to(torch.float32).mean())
