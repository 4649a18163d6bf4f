"""The networks of `benchmarks.fronts`: those of `benchmarks.planning`, and kinds that nothing was tuned on.

None has dropout, so that gradients differ only by codes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.compression.models import MIN_HEADS, VOCABULARY, Net, Size
from benchmarks.planning import nets
from kernels.memory.making import imported

OF_TEXT, OF_IMAGES = ("T5", "Mamba"), ("Swin", "ConvNeXt", "SegFormer")
SMALL = {**nets.SMALL, **dict.fromkeys(OF_TEXT, Size(4, 4, 128, 128)), **dict.fromkeys(OF_IMAGES, Size(4, 4, 112, 128))}
UNSEEN = (*OF_TEXT, *OF_IMAGES)
TINY = {**nets.TINY, "T5": Size(2, 2, 64, 64)}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "drop_path_rate": 0.0}
Configuration = Callable[[Size], dict[str, Any]]


def _t5(size: Size) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "d_model": size.width,
        "d_kv": size.width // MIN_HEADS,
        "d_ff": 2 * size.width,
        "num_layers": size.layers // 2,
        "num_decoder_layers": size.layers // 2,
        "num_heads": MIN_HEADS,
        "feed_forward_proj": "gated-gelu",
        "dropout_rate": 0.0,
        "use_cache": False,
    }


def _mamba(size: Size) -> dict[str, Any]:
    layers = size.layers // 2
    text = {"vocab_size": VOCABULARY, "use_cache": False}
    return {**text, "hidden_size": size.width, "num_hidden_layers": layers, "state_size": 4}


def _swin(size: Size) -> dict[str, Any]:
    stages = {"depths": [size.layers // 2] * 2, "num_heads": [MIN_HEADS // 2, MIN_HEADS], "window_size": 7}
    return {**NO_DROPOUT, **stages, "image_size": size.length, "patch_size": 4, "embed_dim": size.width // 2}


def _convnext(size: Size) -> dict[str, Any]:
    stages = {"num_stages": 2, "depths": [size.layers // 2] * 2, "hidden_sizes": [size.width // 2, size.width]}
    return {**stages, "drop_path_rate": 0.0, "layer_scale_init_value": 1.0}  # by default blocks hardly matter: 1e-6


def _segformer(size: Size) -> dict[str, Any]:
    stages = {"num_encoder_blocks": 2, "depths": [size.layers // 2] * 2, "hidden_sizes": [size.width // 2, size.width]}
    patches = {"patch_sizes": [7, 3], "strides": [4, 2], "sr_ratios": [2, 1]}
    heads = {"num_attention_heads": [MIN_HEADS // 2, MIN_HEADS], "mlp_ratios": [4, 4]}
    return {**NO_DROPOUT, **stages, **patches, **heads}


CONFIGURATIONS: dict[str, tuple[str, Configuration]] = {
    "T5": ("T5Model", _t5),
    "Mamba": ("MambaModel", _mamba),
    "Swin": ("SwinModel", _swin),
    "ConvNeXt": ("ConvNextModel", _convnext),
    "SegFormer": ("SegformerModel", _segformer),
}


def build(name: str, size: Size, seed: int) -> Net:
    """A network of random weights with a batch, in training mode, float32 on a CPU."""
    if name in nets.SMALL:
        return nets.build(name, size, seed, batches=1).net()
    torch.manual_seed(seed)
    model, configured = CONFIGURATIONS[name]
    kind = imported("transformers", model)
    module: nn.Module = kind(kind.config_class(**configured(size))).train()
    if name in OF_IMAGES:
        return Net(module, [], kwargs={"pixel_values": torch.randn(size.batch, 3, size.length, size.length)})
    tokens = torch.randint(2, VOCABULARY, (2, size.batch, size.length))
    kwargs = {"input_ids": tokens[0], **({"decoder_input_ids": tokens[1]} if name == "T5" else {})}
    return Net(module, [], kwargs=kwargs)
