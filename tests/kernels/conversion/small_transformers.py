"""transformers' models, built small from configurations, their inputs, and how training goes."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernels.conversion import Report

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
LAYERS, WIDTH, HIDDEN, WORDS, POSITIONS = 2, 16, 32, 50, 12
STEPS, RATE = 3, 0.002
EPS = torch.finfo(torch.float32).eps
SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "intermediate_size": HIDDEN,
}
TEXT = {"vocab_size": WORDS, "max_position_embeddings": POSITIONS, "bos_token_id": 0, "eos_token_id": 1}
IMAGE = {"image_size": 8, "patch_size": 4}
# As large as lets activations see numbers of the size of 1, on both sides of their minima; published models start at
# 0.02, where in networks of 16 units every function is a straight line.
SPREAD = {"initializer_range": 0.3}


def bert(act: str) -> nn.Module:
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    words = {"vocab_size": WORDS, "max_position_embeddings": POSITIONS}
    config = transformers.BertConfig(hidden_act=act, num_labels=3, **SIZES, **words, **SPREAD, **none)
    return transformers.BertForSequenceClassification(config)


def gpt2(act: str) -> nn.Module:
    sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 2, "n_inner": HIDDEN, "n_positions": POSITIONS}
    none = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "loss_type": "ForCausalLM"}
    words = {"vocab_size": WORDS, "bos_token_id": 0, "eos_token_id": 1}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(activation_function=act, **sizes, **words, **SPREAD, **none)
    )


def vit(act: str) -> nn.Module:
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(hidden_act=act, num_labels=3, **SIZES, **IMAGE, **SPREAD)
    )


def clip(act: str) -> nn.Module:
    text = {"hidden_act": act, "initializer_factor": 3.0, **SIZES, **TEXT}
    vision = {"hidden_act": act, "initializer_factor": 3.0, **SIZES, **IMAGE}
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))


def llama(act: str) -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(hidden_act=act, **SIZES, **TEXT, **SPREAD))


def layers(pattern: str) -> list[str]:
    return [pattern.format(index) for index in range(LAYERS)]


# The activations of the layers, by name; their calls' inputs; and other activations there are.
FAMILIES: dict[str, tuple[Callable[[str], nn.Module], list[str], tuple[str, ...], list[str]]] = {
    "bert": (
        bert,
        layers("bert.encoder.layer.{}.intermediate.intermediate_act_fn"),
        ("input_ids", "classes"),
        ["bert.pooler.activation"],
    ),
    "gpt2": (gpt2, layers("transformer.h.{}.mlp.act"), ("input_ids", "labels"), []),
    "vit": (vit, layers("vit.layers.{}.mlp.activation_fn"), ("pixel_values", "classes"), []),
    "clip": (
        clip,
        layers("text_model.encoder.layers.{}.mlp.activation_fn")
        + layers("vision_model.encoder.layers.{}.mlp.activation_fn"),
        ("input_ids", "pixel_values", "return_loss"),
        [],
    ),
    "llama": (llama, layers("model.layers.{}.mlp.act_fn"), ("input_ids", "labels"), []),
}
each_family = pytest.mark.parametrize("family", FAMILIES)


def build(family: str, act: str = "gelu") -> nn.Module:
    torch.manual_seed(0)
    return FAMILIES[family][0](act).train()


def batch(family: str, seed: int = 0) -> dict[str, Any]:
    made = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, WORDS, (3, 10), generator=made)
    known = {
        "input_ids": ids,
        "labels": ids,
        "classes": torch.randint(3, (3,), generator=made),
        "pixel_values": torch.randn(3, 3, 8, 8, generator=made),
        "return_loss": True,
    }
    return {{"classes": "labels"}.get(name, name): known[name] for name in FAMILIES[family][2]}


def train(model: nn.Module, family: str, steps: int = STEPS) -> tuple[list[float], list[Tensor]]:
    """The loss before each step, of the same batch, and the gradients of the first."""
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=RATE)
    losses, gradients = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(**batch(family)).loss
        loss.backward()
        losses.append(loss.item())
        gradients = gradients or [weight.grad.clone() for weight in weights if weight.grad is not None]
        optimizer.step()
    return losses, gradients


def distance(got: list[Tensor], expected: list[Tensor]) -> float:
    """Relative, of all gradients as one vector."""
    assert len(got) == len(expected) > 0
    apart = sum(float((gradient - other).square().sum()) for gradient, other in zip(got, expected, strict=True))
    return math.sqrt(apart / sum(float(gradient.square().sum()) for gradient in expected))


# How far the gradients may be from stock's, relatively, with LAYERS activations behind one another.
GRADIENTS = {
    # As exact as stock's: rounding of some ten operations in a row.
    "forward-ad": 16 * EPS,
    # Off by 1e-6 in the mean, and by up to 8e-5 next to the minimum of f, where one x in a hundred may be:
    # 8e-5 * sqrt(1/100 * LAYERS), by a root mean square of f' of 0.6.
    "invact": 2e-5,
    # 4 bits are off by 0.025 in the mean (root mean square, the report says): 0.025 / 0.6 * sqrt(LAYERS) = 0.06; and
    # x is only roughly from N(0, 1).
    "fewbit": 0.1,
}


def bound(report: Report) -> float:
    """Of the least exact method that the report has."""
    return max(GRADIENTS[site.now.split(",")[0]] for site in report.converted)


def alike(got: list[float], expected: list[float], bound: float) -> bool:
    """Whether losses are: with gradients off by a share, progress is off by that share to first order; twice, for what
    is of higher order. And each loss is a rounded mean."""
    assert all(math.isfinite(loss) for loss in got)
    pairs = zip(got, expected, strict=True)
    return all(abs(loss - other) <= 2 * bound * (expected[0] - other) + 16 * EPS * expected[0] for loss, other in pairs)


def same(got: tuple[list[float], list[Tensor]], expected: tuple[list[float], list[Tensor]]) -> bool:
    return got[0] == expected[0] and all(map(torch.equal, got[1], expected[1]))
