"""Architectures of language models."""

from tests.kernels.eager.architectures import BART, BART_TOO, SPECIAL, Architecture

GPT = {
    "width": "n_embd",
    "layers": "n_layer",
    "attention_heads": "n_head",
    "inner": "n_inner",
    "positions": "n_positions",
}
GROUPED = {"num_key_value_heads": 1}
HEAD = {"head_dim": lambda s: s.width // s.attention_heads}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True}
OF_TEXT = {
    "bert": Architecture("BertForMaskedLM", "padded"),
    "roberta": Architecture("RobertaForMaskedLM", "padded"),
    "deberta": Architecture(
        "DebertaForMaskedLM", "padded", values={"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
    ),
    "deberta-v2": Architecture(
        "DebertaV2ForMaskedLM",
        "padded",
        values={
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "position_buckets": 8,
            "conv_kernel_size": 3,
        },
    ),
    "albert": Architecture("AlbertForMaskedLM", "padded", values={"embedding_size": 16}),
    "modernbert": Architecture(
        "ModernBertForMaskedLM", "padded", values={**SPECIAL, "cls_token_id": 1, "sep_token_id": 2}
    ),
    "fnet": Architecture("FNetForMaskedLM", "causal"),
    "gpt2": Architecture("GPT2LMHeadModel", names=GPT),
    "gpt-neox": Architecture("GPTNeoXForCausalLM"),
    "gptj": Architecture("GPTJForCausalLM", names=GPT, values={"rotary_dim": 8}),
    "opt": Architecture("OPTForCausalLM", "padded", {"inner": "ffn_dim"}, {"word_embed_proj_dim": lambda s: s.width}),
    "bloom": Architecture(
        "BloomForCausalLM", "padded", {"layers": "n_layer", "attention_heads": "n_head", "inner": "", "positions": ""}
    ),
    "mpt": Architecture(
        "MptForCausalLM",
        "causal",
        {
            "width": "d_model",
            "layers": "n_layers",
            "attention_heads": "n_heads",
            "inner": "",
            "positions": "max_seq_len",
        },
    ),
    "falcon": Architecture(
        "FalconForCausalLM", names={"inner": "ffn_hidden_size"}, values={"alibi": True, "bias": True}
    ),
    "phi3": Architecture("Phi3ForCausalLM", values={**SPECIAL}),
    "gemma": Architecture("GemmaForCausalLM", values={**HEAD, **GROUPED}),
    "gemma2": Architecture(
        "Gemma2ForCausalLM",
        values={**HEAD, **GROUPED, "sliding_window": 8, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": Architecture("Gemma3ForCausalLM", values={**HEAD, **GROUPED, "sliding_window": 8}),
    "llama": Architecture("LlamaForCausalLM", "padded"),
    "llama4": Architecture(
        "Llama4ForCausalLM",
        values={
            **HEAD,
            **GROUPED,
            **SPECIAL,
            "num_local_experts": 4,
            "intermediate_size_mlp": 64,
            "attention_chunk_size": 8,
        },
    ),
    "mistral": Architecture("MistralForCausalLM", "padded", values={**GROUPED, "sliding_window": 8}),
    "mixtral": Architecture("MixtralForCausalLM", "padded", values={**GROUPED, **EXPERTS}),
    "qwen3": Architecture("Qwen3ForCausalLM", values={**HEAD, **GROUPED}),
    "qwen2-moe": Architecture(
        "Qwen2MoeForCausalLM",
        values={
            **GROUPED,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
            "output_router_logits": True,
        },
    ),
    "deepseek-v3": Architecture(
        "DeepseekV3ForCausalLM",
        values={
            "num_key_value_heads": lambda s: s.attention_heads,
            "n_routed_experts": 4,
            "n_group": 2,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 16,
        },
    ),
    "gpt-oss": Architecture(
        "GptOssForCausalLM",
        values={**HEAD, **GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    ),
    "olmo2": Architecture("Olmo2ForCausalLM", values=GROUPED),
    "mamba": Architecture("MambaForCausalLM", values={"state_size": 4}, spread=1.0),
    "t5": Architecture(
        "T5ForConditionalGeneration",
        "padded",
        {"width": "d_model", "layers": "num_layers", "attention_heads": "num_heads", "inner": "d_ff", "positions": ""},
        {"d_kv": 16, "feed_forward_proj": "gated-gelu", **SPECIAL, "decoder_start_token_id": 1},
        spread=1.0,
    ),
    "switch": Architecture(
        "SwitchTransformersForConditionalGeneration",
        "padded",
        {"width": "d_model", "layers": "num_layers", "attention_heads": "num_heads", "inner": "d_ff", "positions": ""},
        {
            "d_kv": 16,
            "num_experts": 4,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1,
            "num_decoder_layers": 2,
            **SPECIAL,
            "decoder_start_token_id": 1,
        },
        spread=1.0,
    ),
    "bart": Architecture("BartForConditionalGeneration", "padded", BART, {**BART_TOO, **SPECIAL}),
}
