"""Architectures for images and sound."""

from tests.kernels.eager.architectures import BART, BART_TOO, NO_SIZES, SPECIAL, Architecture, Sizes

PIXELS = {"words": "", "positions": "", "image": "image_size", "patch": "patch_size"}
STAGES = {
    "hidden_sizes": lambda s: [s.width, 2 * s.width],
    "depths": [1, 2],
}


def _tower(s: Sizes) -> dict[str, int]:
    return {
        "hidden_size": s.width,
        "intermediate_size": s.inner,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.attention_heads,
    }


TWO_TOWERS = {
    "text_config": lambda s: {**_tower(s), "vocab_size": s.words, "max_position_embeddings": s.length + 4},
    "vision_config": lambda s: {**_tower(s), "image_size": s.image, "patch_size": s.patch},
}
OF_IMAGES = {
    "whisper": Architecture(
        "WhisperForConditionalGeneration",
        "spectrograms",
        {**BART, "positions": "max_target_positions"},
        {
            **BART_TOO,
            **SPECIAL,
            "decoder_start_token_id": 1,
            "max_source_positions": lambda s: s.length,
            "num_mel_bins": 80,
        },
    ),
    "wav2vec2": Architecture(
        "Wav2Vec2ForSequenceClassification",
        "waves",
        {"words": "", "positions": ""},
        {
            "conv_dim": [32, 32],
            "conv_stride": [10, 10],
            "conv_kernel": [10, 10],
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
            "apply_spec_augment": False,
        },
    ),
    "vit": Architecture("ViTForImageClassification", "images", PIXELS),
    "beit": Architecture("BeitForImageClassification", "images", {**PIXELS}, {"use_relative_position_bias": True}),
    "dinov2": Architecture("Dinov2ForImageClassification", "images", {**PIXELS, "inner": ""}, {"use_swiglu_ffn": True}),
    "swin": Architecture(
        "SwinForImageClassification",
        "images",
        {**NO_SIZES, "width": "embed_dim", "image": "image_size"},
        {"depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "patch_size": 2, "num_labels": 2},
    ),
    "swinv2": Architecture(
        "Swinv2ForImageClassification",
        "images",
        {**NO_SIZES, "width": "embed_dim", "image": "image_size"},
        {"depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "patch_size": 2},
    ),
    "convnext": Architecture(
        "ConvNextForImageClassification", "images", NO_SIZES, {**STAGES, "num_stages": 2, "patch_size": 2}
    ),
    "convnextv2": Architecture(
        "ConvNextV2ForImageClassification", "images", NO_SIZES, {**STAGES, "num_stages": 2, "patch_size": 2}
    ),
    "segformer": Architecture(
        "SegformerForImageClassification",
        "images",
        NO_SIZES,
        {
            **STAGES,
            "num_encoder_blocks": 2,
            "sr_ratios": [2, 1],
            "patch_sizes": [3, 3],
            "strides": [2, 2],
            "num_attention_heads": [2, 2],
            "mlp_ratios": [2, 2],
        },
    ),
    "resnet": Architecture(
        "ResNetForImageClassification", "images", NO_SIZES, {**STAGES, "embedding_size": 16, "layer_type": "bottleneck"}
    ),
    "mobilenet-v2": Architecture("MobileNetV2ForImageClassification", "images", NO_SIZES, {"depth_multiplier": 0.35}),
    "efficientnet": Architecture(
        "EfficientNetForImageClassification",
        "images",
        NO_SIZES,
        {"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320, "image_size": 32},
    ),
    "focalnet": Architecture(
        "FocalNetForImageClassification",
        "images",
        NO_SIZES,
        {
            "embed_dim": 16,
            "depths": [1, 1],
            "hidden_sizes": [16, 32],
            "focal_levels": [2, 2],
            "focal_windows": [3, 3],
            "image_size": 32,
        },
    ),
    "clip": Architecture("CLIPModel", "both", NO_SIZES, TWO_TOWERS),
}
