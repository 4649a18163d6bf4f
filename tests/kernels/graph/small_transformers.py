"""Small models of transformers, each with a batch and a loss on it."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

WIDTH, VOCABULARY = 64, 96


def tokens(rows: int = 2, length: int = 24) -> Tensor:
    return torch.randint(4, VOCABULARY - 2, (rows, length), generator=torch.Generator().manual_seed(5))


def text(config: Any, model: Any, **options: Any) -> tuple[nn.Module, dict[str, Any]]:
    """A model with a loss on its own tokens."""
    common = {
        "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 2 * WIDTH, "max_position_embeddings": WIDTH, "pad_token_id": 0,
    }  # fmt: skip
    return model(config(**{**common, **options})), {"input_ids": tokens(), "labels": tokens()}


def images(config: Any, model: Any, **options: Any) -> tuple[nn.Module, dict[str, Any]]:
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(6))
    return model(config(num_labels=5, **options)), {"pixel_values": pixels, "labels": torch.tensor([1, 3])}


T = transformers
NONE = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
VIT = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 2 * WIDTH}

MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "bert": lambda: text(T.BertConfig, T.BertForMaskedLM, **NONE),
    "gpt2": lambda: text(
        T.GPT2Config, T.GPT2LMHeadModel, n_embd=WIDTH, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, use_cache=False,
    ),
    "llama": lambda: text(T.LlamaConfig, T.LlamaForCausalLM, num_key_value_heads=2, use_cache=False),
    "mixtral": lambda: text(
        T.MixtralConfig, T.MixtralForCausalLM, num_key_value_heads=2, num_local_experts=4, use_cache=False
    ),
    "vit": lambda: images(T.ViTConfig, T.ViTForImageClassification, image_size=32, patch_size=8, **VIT, **NONE),
    "resnet": lambda: images(
        T.ResNetConfig, T.ResNetForImageClassification, embedding_size=16, hidden_sizes=[32, 64], depths=[1, 1],
        layer_type="bottleneck",
    ),
}  # fmt: skip


def build(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """A model in training, and its arguments."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return model.train(), inputs
