"""The published hyper-parameters of models, by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from actfit.kernels.memory.plain import MLP, Block, vgg


@dataclass(frozen=True)
class Recipe:
    """How a model is built, and what its inputs are."""

    model: str | Callable[[Any], nn.Module]  # the name of a class of transformers, or a function that builds the model
    inputs: str  # what it takes: "tokens", "images", ...
    values: Mapping[str, Any] = field(default_factory=dict)  # of its configuration
    act: str = "hidden_act"  # the name of the activation in its configuration
    attends: bool = True  # whether it has attention, which can be computed in several ways
    parts: tuple[str, ...] = ()  # the sub-configurations that take `values`
    length: int | None = None  # of sequences: the usual number of positions, if not the maximum
    reserved: int = 0  # of sequences: positions that tokens cannot use
    batch: int = 1
    dtype: torch.dtype = torch.float32
    # Values for a small copy with modules of the same names, which runs for real in a moment.
    narrow: Mapping[str, Any] = field(default_factory=dict)


# Rows of 128 elements are a whole group of codes, as those of the published models are whole groups.
_SMALL = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512}
_SMALL_TEXT = {**_SMALL, "vocab_size": 512}
_SMALL_GPT = {"n_embd": 128, "n_head": 4, "vocab_size": 512, "bos_token_id": 0, "eos_token_id": 0}
_SMALL_LLAMA = {**_SMALL_TEXT, "intermediate_size": 384, "head_dim": 32, "num_key_value_heads": 4}
_SMALL_MISTRAL = {**_SMALL_TEXT, "head_dim": 32, "num_key_value_heads": 1}
_SMALL_BLOG = {"width": 128}
_SMALL_IMAGE = {"image_size": 64}  # channels stay as they are: a stage in the end has few pixels


def _resnet(layer: str, *depths: int) -> Recipe:
    widths = [64, 128, 256, 512] if layer == "basic" else [256, 512, 1024, 2048]
    values = {"layer_type": layer, "depths": list(depths), "hidden_sizes": widths, "image_size": 224}
    return Recipe(
        "ResNetForImageClassification", "images", {**values, "num_labels": 1000}, attends=False, narrow=_SMALL_IMAGE
    )


def _efficientnet(width: float, depth: float, image: int, dropout: float, last: int, odd: tuple[int, ...]) -> Recipe:
    sizes = {"width_coefficient": width, "depth_coefficient": depth, "image_size": image, "hidden_dim": last}
    values = {**sizes, "dropout_rate": dropout, "depthwise_padding": list(odd), "num_labels": 1000}
    return Recipe("EfficientNetForImageClassification", "images", values, attends=False, narrow=_SMALL_IMAGE)


def _vgg(depth: int) -> Recipe:
    values = {"depth": depth, "hidden": 4096, "image_size": 224, "hidden_act": "relu"}
    return Recipe(vgg, "images", values, attends=False, narrow={**_SMALL_IMAGE, "hidden": 2048})


ROBERTA = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
LLAMA = {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "use_cache": False}
MISTRAL = {**LLAMA, "max_position_embeddings": 32768, "sliding_window": 4096}
# Two heads: of the bytes published for the block, 65536 are log-sum-exps in float32, one for each position and head.
BLOG = {"width": 1024, "heads": 2, "hidden_act": "gelu"}

# Where a configuration says nothing, the default of its class in transformers is the published value.
RECIPES = {
    "bert": Recipe("BertModel", "tokens", narrow=_SMALL_TEXT),
    "roberta": Recipe("RobertaModel", "tokens", ROBERTA, reserved=2, narrow=_SMALL_TEXT),
    "roberta-large": Recipe("RobertaModel", "tokens", {**ROBERTA, **LARGE}, reserved=2, narrow=_SMALL_TEXT),
    "gpt2": Recipe("GPT2LMHeadModel", "tokens", {"use_cache": False}, "activation_function", narrow=_SMALL_GPT),
    "vit": Recipe("ViTForImageClassification", "images", {"num_labels": 1000}, narrow=_SMALL),
    "clip": Recipe("CLIPModel", "tokens and images", parts=("text_config", "vision_config"), narrow=_SMALL_TEXT),
    "ast": Recipe(
        "ASTForAudioClassification", "spectrograms", {"num_labels": 527}, narrow={**_SMALL, "max_length": 256}
    ),
    "llama": Recipe("LlamaForCausalLM", "tokens", LLAMA, dtype=torch.bfloat16, narrow=_SMALL_LLAMA),
    "mistral": Recipe(
        "MistralForCausalLM", "tokens", MISTRAL, length=4096, dtype=torch.bfloat16, narrow=_SMALL_MISTRAL
    ),
    "resnet18": _resnet("basic", 2, 2, 2, 2),
    "resnet34": _resnet("basic", 3, 4, 6, 3),
    "resnet50": _resnet("bottleneck", 3, 4, 6, 3),
    "resnet101": _resnet("bottleneck", 3, 4, 23, 3),
    "resnet152": _resnet("bottleneck", 3, 8, 36, 3),
    "vgg11": _vgg(11),
    "vgg16": _vgg(16),
    "vgg19": _vgg(19),
    "efficientnet-b0": _efficientnet(1.0, 1.0, 224, 0.2, 1280, ()),
    "efficientnet-b3": _efficientnet(1.2, 1.4, 300, 0.3, 1536, (5, 18)),
    "efficientnet-b7": _efficientnet(2.0, 3.1, 600, 0.5, 2560, (18,)),
    "mlp": Recipe(MLP, "vectors", BLOG, attends=False, length=4096, batch=2, dtype=torch.bfloat16, narrow=_SMALL_BLOG),
    "block": Recipe(Block, "vectors", BLOG, length=4096, batch=2, dtype=torch.bfloat16, narrow=_SMALL_BLOG),
}
