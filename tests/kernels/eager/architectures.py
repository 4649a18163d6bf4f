"""Architectures of transformers at random weights, of any width, and what they are called with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


@dataclass(frozen=True)
class Sizes:
    """Of a model and a batch of it."""

    width: int = 32
    layers: int = 2
    heads: int = 2
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
    parts: tuple[str, ...] = ()  # configurations in it that take the sizes

    def build(self, sizes: Sizes) -> nn.Module:
        """In training, with all dropouts at their own."""
        kind = getattr(transformers, self.model)
        given = self._sizes(sizes)
        values = {part: given for part in self.parts} or given
        config = kind.config_class(**{**values, **self._evaluated(sizes)})
        torch.manual_seed(0)
        model: nn.Module = kind(config).train()
        with torch.no_grad():  # at the standard deviation of 0.02 that most start with, small models are straight lines
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight *= 4
        return model

    def _evaluated(self, sizes: Sizes) -> dict[str, Any]:
        return {name: value(sizes) if callable(value) else value for name, value in self.values.items()}

    def _sizes(self, sizes: Sizes) -> dict[str, Any]:
        names = {**COMMON, **self.names}
        known = {
            **{name: getattr(sizes, name) for name in ("width", "layers", "heads", "inner", "words", "image", "patch")},
            "positions": sizes.length + 4,
        }
        return {names[name]: value for name, value in known.items() if names[name]}

    def batch(self, sizes: Sizes) -> dict[str, Any]:
        """What it is called with."""
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
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "words": "vocab_size",
    "positions": "max_position_embeddings",
    "image": "",
    "patch": "",
}
GPT = {"width": "n_embd", "layers": "n_layer", "heads": "n_head", "inner": "n_inner", "positions": "n_positions"}
PIXELS = {"words": "", "positions": "", "image": "image_size", "patch": "patch_size"}
TWO = {"classifier_dropout": 0.0}
BART = {"width": "d_model", "layers": "encoder_layers", "heads": "encoder_attention_heads", "inner": "encoder_ffn_dim"}
BART_TOO = {
    "decoder_layers": lambda s: s.layers,
    "decoder_attention_heads": lambda s: s.heads,
    "decoder_ffn_dim": lambda s: s.inner,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {"num_key_value_heads": 1}
HEAD = {"head_dim": lambda s: s.width // s.heads}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True}
STAGES = {
    "hidden_sizes": lambda s: [s.width, 2 * s.width],
    "depths": [1, 2],
}
NO_SIZES = {name: "" for name in COMMON}

ARCHITECTURES = {
    "bert": Architecture("BertForMaskedLM", "padded"),
    "roberta": Architecture("RobertaForMaskedLM", "padded"),
    "distilbert": Architecture(
        "DistilBertForMaskedLM",
        "padded",
        {"width": "dim", "layers": "n_layers", "heads": "n_heads", "inner": "hidden_dim"},
    ),
    "electra": Architecture("ElectraForMaskedLM", "padded", values={"embedding_size": 16}),
    "deberta": Architecture(
        "DebertaForMaskedLM", "padded", values={"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
    ),
    "deberta-v2": Architecture(
        "DebertaV2ForMaskedLM",
        "padded",
        values={"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8, "conv_kernel_size": 3},
    ),
    "albert": Architecture("AlbertForMaskedLM", "padded", values={"embedding_size": 16}),
    "mpnet": Architecture("MPNetForMaskedLM", "padded"),
    "modernbert": Architecture("ModernBertForMaskedLM", "padded", values={**SPECIAL, "cls_token_id": 1, "sep_token_id": 2}),
    "convbert": Architecture("ConvBertForMaskedLM", "padded", values={"embedding_size": 32}),
    "nystromformer": Architecture("NystromformerForMaskedLM", "padded", values={"num_landmarks": 4, "segment_means_seq_len": 16}),
    "fnet": Architecture("FNetForMaskedLM", "causal"),
    "xlnet": Architecture(
        "XLNetLMHeadModel", "causal", {"width": "d_model", "layers": "n_layer", "heads": "n_head", "inner": "d_inner", "positions": ""}
    ),
    "big-bird": Architecture("BigBirdForMaskedLM", "padded", values={"attention_type": "original_full"}),
    "longformer": Architecture("LongformerForMaskedLM", "padded", values={"attention_window": 8, "pad_token_id": 1}),
    "funnel": Architecture("FunnelForMaskedLM", "padded", {"width": "d_model", "layers": "", "heads": "n_head", "inner": "d_inner", "positions": ""}, {"block_sizes": [1, 1], "d_head": 16, "num_decoder_layers": 1}),
    "roformer": Architecture("RoFormerForMaskedLM", "padded", values={"embedding_size": 32}),
    "gpt2": Architecture("GPT2LMHeadModel", names=GPT),
    "gpt-neo": Architecture(
        "GPTNeoForCausalLM",
        names={"layers": "num_layers", "heads": "num_heads"},
        values={"attention_types": [[["global", "local"], 1]], "window_size": 4},
    ),
    "gpt-neox": Architecture("GPTNeoXForCausalLM"),
    "gptj": Architecture("GPTJForCausalLM", names=GPT, values={"rotary_dim": 8}),
    "gpt-bigcode": Architecture("GPTBigCodeForCausalLM", names=GPT),
    "codegen": Architecture("CodeGenForCausalLM", names=GPT, values={"rotary_dim": 8, "n_head": 4}),
    "opt": Architecture("OPTForCausalLM", "padded", {"inner": "ffn_dim"}, {"word_embed_proj_dim": lambda s: s.width}),
    "bloom": Architecture("BloomForCausalLM", "padded", {"layers": "n_layer", "heads": "n_head", "inner": "", "positions": ""}),
    "mpt": Architecture("MptForCausalLM", "causal", {"width": "d_model", "layers": "n_layers", "heads": "n_heads", "inner": "", "positions": "max_seq_len"}),
    "falcon": Architecture("FalconForCausalLM", names={"inner": "ffn_hidden_size"}, values={"alibi": True, "bias": True}),
    "falcon-new": Architecture("FalconForCausalLM", names={"inner": "ffn_hidden_size"}, values={"new_decoder_architecture": True, "num_kv_heads": 1}),
    "phi": Architecture("PhiForCausalLM"),
    "phi3": Architecture("Phi3ForCausalLM", values={**SPECIAL}),
    "stablelm": Architecture("StableLmForCausalLM"),
    "persimmon": Architecture("PersimmonForCausalLM"),
    "gemma": Architecture("GemmaForCausalLM", values={**HEAD, **GROUPED}),
    "gemma2": Architecture("Gemma2ForCausalLM", values={**HEAD, **GROUPED, "sliding_window": 8, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gemma3": Architecture("Gemma3ForCausalLM", values={**HEAD, **GROUPED, "sliding_window": 8}),
    "llama": Architecture("LlamaForCausalLM", "padded"),
    "llama4": Architecture("Llama4ForCausalLM", values={**HEAD, **GROUPED, **SPECIAL, "num_local_experts": 4, "intermediate_size_mlp": 64, "attention_chunk_size": 8}),
    "mistral": Architecture("MistralForCausalLM", "padded", values={**GROUPED, "sliding_window": 8}),
    "mixtral": Architecture("MixtralForCausalLM", "padded", values={**GROUPED, **EXPERTS}),
    "qwen2": Architecture("Qwen2ForCausalLM", values=GROUPED),
    "qwen3": Architecture("Qwen3ForCausalLM", values={**HEAD, **GROUPED}),
    "qwen3-next": Architecture("Qwen3NextForCausalLM", values={**HEAD, **GROUPED, "num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention"]}),
    "qwen2-moe": Architecture(
        "Qwen2MoeForCausalLM",
        values={**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "output_router_logits": True},
    ),
    "olmoe": Architecture("OlmoeForCausalLM", values={"num_experts": 4, "num_experts_per_tok": 2}),
    "deepseek-v3": Architecture("DeepseekV3ForCausalLM", values={"num_key_value_heads": lambda s: s.heads, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}),
    "gpt-oss": Architecture("GptOssForCausalLM", values={**HEAD, **GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8}),
    "granite-moe": Architecture("GraniteMoeForCausalLM", values={**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "olmo2": Architecture("Olmo2ForCausalLM", values=GROUPED),
    "cohere": Architecture("CohereForCausalLM", values={**GROUPED, **SPECIAL, "use_qk_norm": True}),
    "glm": Architecture("GlmForCausalLM", values={**GROUPED, **HEAD, **SPECIAL}),
    "nemotron": Architecture("NemotronForCausalLM", values={**GROUPED, **HEAD}),
    "mamba": Architecture("MambaForCausalLM", values={"state_size": 4}),
    "mamba2": Architecture("Mamba2ForCausalLM", names={"heads": ""}, values={"num_heads": 4, "head_dim": lambda s: s.width // 2, "n_groups": 1, "state_size": 8, "chunk_size": 8}),
    "recurrent-gemma": Architecture("RecurrentGemmaForCausalLM", values={**GROUPED, "lru_width": lambda s: s.width, "attention_window_size": 8, "block_types": ["recurrent", "attention"]}),
    "rwkv": Architecture("RwkvForCausalLM", names={"heads": "", "positions": "context_length"}),
    "t5": Architecture(
        "T5ForConditionalGeneration",
        "padded",
        {"width": "d_model", "layers": "num_layers", "heads": "num_heads", "inner": "d_ff", "positions": ""},
        {"d_kv": 16, "feed_forward_proj": "gated-gelu", **SPECIAL, "decoder_start_token_id": 1},
    ),
    "switch": Architecture(
        "SwitchTransformersForConditionalGeneration",
        "padded",
        {"width": "d_model", "layers": "num_layers", "heads": "num_heads", "inner": "d_ff", "positions": ""},
        {"d_kv": 16, "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_decoder_layers": 2, **SPECIAL, "decoder_start_token_id": 1},
    ),
    "bart": Architecture("BartForConditionalGeneration", "padded", BART, {**BART_TOO, **SPECIAL}),
    "pegasus": Architecture("PegasusForConditionalGeneration", "padded", BART, {**BART_TOO, **SPECIAL}),
    "marian": Architecture("MarianMTModel", "padded", BART, {**BART_TOO, **SPECIAL, "decoder_start_token_id": 1, "scale_embedding": True}),
    "led": Architecture("LEDForConditionalGeneration", "padded", {**BART, "positions": "max_encoder_position_embeddings"}, {**BART_TOO, **SPECIAL, "attention_window": 8}),
    "whisper": Architecture(
        "WhisperForConditionalGeneration", "spectrograms", {**BART, "positions": "max_target_positions"},
        {**BART_TOO, **SPECIAL, "decoder_start_token_id": 1, "max_source_positions": lambda s: s.length, "num_mel_bins": 80},
    ),
    "wav2vec2": Architecture(
        "Wav2Vec2ForSequenceClassification", "waves",
        {"words": "", "positions": ""},
        {"conv_dim": [32, 32], "conv_stride": [10, 10], "conv_kernel": [10, 10], "num_feat_extract_layers": 2,
         "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False},
    ),
    "hubert": Architecture(
        "HubertForSequenceClassification", "waves",
        {"words": "", "positions": ""},
        {"conv_dim": [32, 32], "conv_stride": [10, 10], "conv_kernel": [10, 10], "num_feat_extract_layers": 2, "do_stable_layer_norm": True, "feat_extract_norm": "layer",
         "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False},
    ),
    "vit": Architecture("ViTForImageClassification", "images", PIXELS),
    "deit": Architecture("DeiTForImageClassification", "images", PIXELS),
    "beit": Architecture("BeitForImageClassification", "images", {**PIXELS}, {"use_relative_position_bias": True}),
    "dinov2": Architecture("Dinov2ForImageClassification", "images", {**PIXELS, "inner": ""}, {"use_swiglu_ffn": True}),
    "swin": Architecture(
        "SwinForImageClassification", "images", {**NO_SIZES, "width": "embed_dim", "image": "image_size"},
        {"depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "patch_size": 2, "num_labels": 2},
    ),
    "swinv2": Architecture(
        "Swinv2ForImageClassification", "images", {**NO_SIZES, "width": "embed_dim", "image": "image_size"},
        {"depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "patch_size": 2},
    ),
    "convnext": Architecture("ConvNextForImageClassification", "images", NO_SIZES, {**STAGES, "num_stages": 2, "patch_size": 2}),
    "convnextv2": Architecture("ConvNextV2ForImageClassification", "images", NO_SIZES, {**STAGES, "num_stages": 2, "patch_size": 2}),
    "segformer": Architecture("SegformerForImageClassification", "images", NO_SIZES, {**STAGES, "num_encoder_blocks": 2, "sr_ratios": [2, 1], "patch_sizes": [3, 3], "strides": [2, 2], "num_attention_heads": [2, 2], "mlp_ratios": [2, 2]}),
    "poolformer": Architecture("PoolFormerForImageClassification", "images", NO_SIZES, {**STAGES, "num_encoder_blocks": 2, "patch_sizes": [3, 3], "strides": [2, 2], "padding": [1, 1]}),
    "pvt": Architecture("PvtForImageClassification", "images", {**NO_SIZES, "image": "image_size"}, {**STAGES, "num_encoder_blocks": 2, "sequence_reduction_ratios": [2, 1], "patch_sizes": [2, 2], "strides": [2, 2], "num_attention_heads": [2, 2], "mlp_ratios": [2, 2]}),
    "resnet": Architecture("ResNetForImageClassification", "images", NO_SIZES, {**STAGES, "embedding_size": 16, "layer_type": "bottleneck"}),
    "regnet": Architecture("RegNetForImageClassification", "images", NO_SIZES, {**STAGES, "embedding_size": 16, "groups_width": 8}),
    "bit": Architecture("BitForImageClassification", "images", NO_SIZES, {**STAGES, "embedding_size": 32}),
    "mobilenet-v1": Architecture("MobileNetV1ForImageClassification", "images", NO_SIZES, {"depth_multiplier": 0.25}),
    "mobilenet-v2": Architecture("MobileNetV2ForImageClassification", "images", NO_SIZES, {"depth_multiplier": 0.35}),
    "efficientnet": Architecture("EfficientNetForImageClassification", "images", NO_SIZES, {"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 32, "image_size": 32, "drop_connect_rate": 0.2}),
    "mobilevit": Architecture("MobileViTForImageClassification", "images", NO_SIZES, {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 32], "image_size": 32, "num_attention_heads": 2}),
    "focalnet": Architecture("FocalNetForImageClassification", "images", NO_SIZES, {"embed_dim": 16, "depths": [1, 1], "hidden_sizes": [16, 32], "focal_levels": [2, 2], "focal_windows": [3, 3], "image_size": 32}),
    "clip": Architecture("CLIPModel", "both", {"image": "", "patch": ""}, {"text_config": lambda s: {"hidden_size": s.width, "intermediate_size": s.inner, "num_hidden_layers": s.layers, "num_attention_heads": s.heads, "vocab_size": s.words, "max_position_embeddings": s.length + 4}, "vision_config": lambda s: {"hidden_size": s.width, "intermediate_size": s.inner, "num_hidden_layers": s.layers, "num_attention_heads": s.heads, "image_size": s.image, "patch_size": s.patch}}),
    "siglip": Architecture("SiglipModel", "both", {"image": "", "patch": ""}, {"text_config": lambda s: {"hidden_size": s.width, "intermediate_size": s.inner, "num_hidden_layers": s.layers, "num_attention_heads": s.heads, "vocab_size": s.words, "max_position_embeddings": s.length + 4}, "vision_config": lambda s: {"hidden_size": s.width, "intermediate_size": s.inner, "num_hidden_layers": s.layers, "num_attention_heads": s.heads, "image_size": s.image, "patch_size": s.patch}}),
}
