"""The networks of `benchmarks.compression`: small stacks of blocks, wide enough to have tensors worth encoding.

"GELU MLP", "Llama-like" and "language model" are written here, the last alone with its head and loss; the others are
transformers', built from configurations, without heads. None has dropout, so that the gradients of all ways differ only
by rounding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actfit.kernels.memory import zoo
from actfit.kernels.memory.storages import tensors
from actfit.kernels.planning.plan import Plan
from benchmarks.gpu.ways import blocks as repeated

MIN_HEADS, HEAD_WIDTH, VOCABULARY = 4, 64, 1000  # a head's width if there are more heads; tokens
WORDS = 32000  # of a language model with its head
SEED = 0


class Mlp(nn.Sequential):
    """Linear, GELU, Linear: a block."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def _head_count(width: int) -> int:
    return max(MIN_HEADS, width // HEAD_WIDTH)


class Llama(nn.Module):
    """RMSNorm, causal attention, RMSNorm, a gate: a block of Llama without rotary positions."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        linear = partial(nn.Linear, bias=False)
        self.heads = _head_count(width)
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.key, self.value, self.out = (linear(width, width) for _ in range(4))
        self.gate, self.up, self.down = linear(width, hidden), linear(width, hidden), linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        q, k, v = (
            part(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        h = self.second(x)
        result: Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return result


class LanguageModel(nn.Module):
    """Embedding, blocks of Llama, norm, head; gives the loss of its own words."""

    def __init__(self, blocks: Sequence[nn.Module], width: int) -> None:
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(WORDS, width), nn.Sequential(*blocks)
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        logits = self.head(self.norm(self.blocks(self.embedding(words))))
        return F.cross_entropy(logits.flatten(0, 1).float(), words.flatten())


@dataclass
class Net:
    """A network, its arguments, the blocks that checkpointing computes again, and the plan that it trains by."""

    module: nn.Module
    blocks: list[nn.Module]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    weights: Tensor | None = None
    plan: Plan | None = None

    def loss(self, run: Callable[..., Any]) -> Tensor:
        """The loss of what `run` gives."""
        return self.loss_of(run(*self.args, **self.kwargs))

    def loss_of(self, output: Any) -> Tensor:
        """The sum of the first tensor in an output times fixed random weights.

        Weights that hardly change along a row would be nearly orthogonal to a layer norm's output.
        """
        first: Tensor = next(iter(tensors(output)))
        if self.weights is None:
            torch.manual_seed(SEED)
            self.weights = torch.randn_like(first, dtype=torch.float32) / first.numel() ** 0.5
        return (first * self.weights).sum()

    def to(self, dtype: torch.dtype) -> "Net":
        """The same network and its inputs, converted in place to another dtype."""

        def converted(value: Any) -> Any:
            return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

        args = tuple(map(converted, self.args))
        return Net(self.module.to(dtype), self.blocks, args, {key: converted(v) for key, v in self.kwargs.items()})

    def gradient(self) -> Tensor:
        """The gradient of all weights, flat, float64."""
        weights = self.module.parameters()
        parts = (torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights)
        return torch.cat([part.flatten().double() for part in parts])


class Size(NamedTuple):
    """The size of a network: blocks, samples, positions or pixels of a side, width."""

    layers: int
    batch: int
    length: int
    width: int


NORMAL = {
    "GELU MLP": Size(6, 8192, 1, 256),
    "Llama-like": Size(6, 16, 256, 256),
    "BERT": Size(4, 16, 256, 256),
    "GPT-2": Size(4, 16, 256, 256),
    "ViT": Size(4, 16, 224, 256),
    "ViT-B": Size(12, 2, 224, 768),  # the model of that name, whose pictures are a small part of what it saves
    "Llama": Size(4, 16, 256, 256),
    "language model": Size(4, 8, 256, 256),
    "narrow Llama": Size(16, 2, 64, 64),  # whose steps are the host's time
    "narrow ViT": Size(16, 2, 128, 64),
}
LARGE = {  # for a GPU of 80 GB, which holds all ways at once while they are timed
    "GELU MLP": Size(4, 16384, 1, 4096),
    "Llama-like": Size(4, 8, 2048, 4096),
    "BERT": Size(8, 32, 512, 1024),
    "GPT-2": Size(8, 16, 1024, 1024),
    "ViT": Size(8, 64, 224, 1024),
    "ViT-B": Size(12, 64, 224, 768),
    "Llama": Size(4, 8, 2048, 4096),
    "language model": Size(8, 4, 2048, 2048),
    "narrow Llama": Size(16, 2, 64, 64),
    "narrow ViT": Size(16, 2, 128, 64),
}
TINY = {name: Size(2, 64, 1, 64) if name == "GELU MLP" else Size(2, 4, 64, 64) for name in NORMAL}


def build(name: str, size: Size, dtype: torch.dtype, device: torch.device, seed: int = SEED) -> Net:
    """A network by its name in NORMAL, in training mode; the seed determines weights and inputs."""
    torch.manual_seed(seed)
    with device:
        net = _stack(name, size) if name in ("GELU MLP", "Llama-like", "language model") else _of_zoo(name, size)
    net.module.train()
    return net.to(dtype)


def _stack(name: str, size: Size) -> Net:
    hidden = 43 * size.width // 16  # 688 of 256
    is_mlp = name == "GELU MLP"
    blocks: list[nn.Module] = [Mlp(size.width) if is_mlp else Llama(size.width, hidden) for _ in range(size.layers)]
    if name == "language model":
        words = torch.randint(WORDS, (size.batch, size.length))
        return Net(LanguageModel(blocks, size.width), blocks, (words,))
    shape = (size.batch, size.width) if is_mlp else (size.batch, size.length, size.width)
    return Net(nn.Sequential(*blocks), blocks, (torch.randn(shape),))


def _of_zoo(name: str, size: Size) -> Net:
    head_count = _head_count(size.width)
    usual = {
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": head_count,
        "intermediate_size": 4 * size.width,
    }
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    text: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0}
    changed: dict[str, dict[str, Any]] = {
        "BERT": {**usual, **none, **text, "max_position_embeddings": size.length},
        "GPT-2": {
            **{"n_embd": size.width, "n_layer": size.layers, "n_head": head_count, "n_positions": size.length},
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
            **text,
        },
        "ViT": {**usual, **none, "image_size": size.length},
        "Llama": {**usual, **text, "intermediate_size": 43 * size.width // 16, "num_key_value_heads": head_count},
    }
    kind = name.removesuffix("-B").removeprefix("narrow ")
    known = kind.lower().replace("-", "")
    seq = None if kind == "ViT" else size.length
    model, args, kwargs = zoo.build(known, batch=size.batch, seq=seq, dtype=torch.float32, **changed[kind])
    bare = model.base_model
    return Net(bare, list(repeated(bare)), args, kwargs)
