"""Small models with the graph patterns that codes must handle, and their inputs."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def mlp(width: int = 32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, 64), nn.SiLU(), nn.Linear(64, width))


class Attention(nn.Module):
    """PyTorch's own attention, or written out with dropout."""

    def __init__(self, causal: bool = False, written: bool = False) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(64), nn.Linear(64, 64)
        self.query, self.key, self.value = (nn.Linear(64, 64) for _ in range(3))
        self.causal, self.written = causal, written

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (part(h).unflatten(-1, (2, 32)).transpose(1, 2) for part in (self.query, self.key, self.value))
        if self.written:
            y = F.dropout(torch.softmax(q @ k.mT / 32**0.5, -1), 0.1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        result: Tensor = x + self.out(y.transpose(1, 2).flatten(2))
        return result


class Llama(nn.Module):
    """A block with RMSNorm, attention and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = Attention(causal=True), nn.RMSNorm(64)
        self.gate, self.up, self.down = nn.Linear(64, 176), nn.Linear(64, 176), nn.Linear(176, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(x)
        h = self.norm(x)
        result: Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return result


class Convolutional(nn.Module):
    """A residual block with batch norms, and pooling of two kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv, self.bn2 = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.stem(x)))
        x = F.max_pool2d(F.relu(self.bn2(self.conv(x)) + x), 2)
        result: Tensor = self.head(x.mean((2, 3)))
        return result


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (64, 32)),
    "attention": (Attention, (4, 64, 64)),
    "attention with dropout": (lambda: Attention(written=True), (4, 64, 64)),
    "llama": (lambda: nn.Sequential(Llama(), Llama()), (2, 64, 64)),
    "convolutional": (Convolutional, (8, 3, 16, 16)),
}


def build(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The named model and its inputs, always the same."""
    torch.manual_seed(0)
    make, shape = MODELS[name]
    return make(), (torch.randn(shape),)


class WrittenOut(nn.Module):
    """GELU as GPT-2 has it: its derivative reads x and a tanh more than once."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.045 * torch.pow(x, 3.0))))
