"""Architectures of transformers with random weights, of any width, and their inputs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model and its batch."""

    width: int = 32
    layers: int = 2
    attention_heads: int = 2
    batch: int = 2
    length: int = 16
    words: int = 64
    image: int = 32
    patch: int = 8

    @property
    def inner(self) -> int:
        return 4 * self.width


@dataclass(frozen=True)
class Architecture:
    """A class of transformers, the names that its configuration has for sizes, other values of it, and its inputs."""

    model: str
    inputs: str = "causal"
    names: Mapping[str, str] = field(default_factory=dict)  # of our sizes in the configuration
    values: Mapping[str, Any] = field(default_factory=dict)
    spread: float = 4.0  # by which weights are multiplied

    def build(self, sizes: Sizes, dropout: bool = True) -> nn.Module:
        """The model in training mode, with its default dropouts or without dropout."""
        kind = getattr(transformers, self.model)
        config = kind.config_class(**{**self._sizes(sizes), **self._evaluated(sizes)})
        for part in (
            config,
            *(getattr(config, name) for name in ("text_config", "vision_config") if hasattr(config, name)),
        ):
            vars(part).update({name: 0.0 for name in vars(part) if "drop" in name and not dropout})
        torch.manual_seed(0)
        model: nn.Module = kind(config).train()
        with torch.no_grad():  # with the usual initial deviation of 0.02, small models are nearly linear
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight *= self.spread
        return model

    def _evaluated(self, sizes: Sizes) -> dict[str, Any]:
        return {name: value(sizes) if callable(value) else value for name, value in self.values.items()}

    def _sizes(self, sizes: Sizes) -> dict[str, Any]:
        names = {**COMMON, **self.names}
        known = {
            **{
                name: getattr(sizes, name)
                for name in ("width", "layers", "attention_heads", "inner", "words", "image", "patch")
            },
            "positions": sizes.length + 4,
        }
        return {names[name]: value for name, value in known.items() if names[name]}

    def batch(self, sizes: Sizes) -> dict[str, Any]:
        """The model's inputs."""
        made = torch.Generator().manual_seed(1)
        ids = torch.randint(4, sizes.words, (sizes.batch, sizes.length), generator=made)
        pixels = torch.randn(sizes.batch, 3, sizes.image, sizes.image, generator=made)
        mask = torch.ones_like(ids)
        mask[0, -3:] = 0
        classes = torch.arange(sizes.batch) % 2
        match self.inputs:
            case "causal":
                return {"input_ids": ids, "labels": ids}
            case "padded":
                return {"input_ids": ids, "labels": ids, "attention_mask": mask}
            case "classes":
                return {"input_ids": ids, "attention_mask": mask, "labels": classes}
            case "images":
                return {"pixel_values": pixels, "labels": classes}
            case "both":
                return {"input_ids": ids, "pixel_values": pixels, "return_loss": True}
            case "waves":
                return {"input_values": torch.randn(sizes.batch, 400 * sizes.length, generator=made), "labels": classes}
            case "spectrograms":
                features = torch.randn(sizes.batch, 80, 2 * sizes.length, generator=made)
                return {"input_features": features, "labels": ids}
        raise ValueError(self.inputs)


COMMON = {
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "attention_heads": "num_attention_heads",
    "inner": "intermediate_size",
    "words": "vocab_size",
    "positions": "max_position_embeddings",
    "image": "",
    "patch": "",
}
NO_SIZES = dict.fromkeys(COMMON, "")
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BART = {
    "width": "d_model",
    "layers": "encoder_layers",
    "attention_heads": "encoder_attention_heads",
    "inner": "encoder_ffn_dim",
}
BART_TOO = {
    "decoder_layers": lambda s: s.layers,
    "decoder_attention_heads": lambda s: s.attention_heads,
    "decoder_ffn_dim": lambda s: s.inner,
}
