"""Language models between training and generation, with adapters, with gradient checkpointing by their own flag."""

from typing import Any

import peft
import pytest
import torch
import transformers
from torch import Tensor, nn

from tests.kernels.graph.nets import assert_same, pair

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.* is deprecated and will be removed:FutureWarning"),  # by peft, of transformers
]
ADAPTED = {
    "lora": lambda: peft.LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "up_proj"]),
    "modules to save": lambda: peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"]),
    "ia3": lambda: peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
}


def tokens(length: int = 24) -> Tensor:
    return torch.randint(4, 90, (2, length), generator=torch.Generator().manual_seed(5))


def llama(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0}
    model: nn.Module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **heads, **options}))
    return model.train()


def step(model: nn.Module, length: int = 24, **options: Any) -> None:
    model.zero_grad()
    torch.manual_seed(3)
    model(input_ids=tokens(length), labels=tokens(length), **options).loss.backward()


def test_generation_between_steps() -> None:
    """Generation before and between steps, of lengths that change; with a cache in training, too."""
    stock, ours, handle = pair(llama(use_cache=True, attention_dropout=0.1))
    for length in (24, 17, 24):
        written = [model.eval().generate(tokens(9), max_new_tokens=4, do_sample=False) for model in (stock, ours)]
        assert torch.equal(*written)
        for model in (stock, ours):
            step(model.train(), length)
        assert_same(ours, stock)
    assert not handle.stock
    assert handle.report.graphs


@pytest.mark.parametrize(
    ("adapter", "late"), [("lora", False), ("lora", True), ("modules to save", True), ("ia3", False)]
)
def test_adapters(adapter: str, late: bool) -> None:
    """Frozen models with adapters; compressed first, or after they got these."""
    torch.manual_seed(0)
    made = llama() if late else peft.get_peft_model(llama(), ADAPTED[adapter]())
    stock, ours, handle = pair(made)
    if late:
        step(ours)
        ours.zero_grad()
        adapted = []
        for model in (stock, ours):
            torch.manual_seed(1)
            adapted.append(peft.get_peft_model(model, ADAPTED[adapter]()))
        stock, ours = adapted
    for model in (stock, ours):
        step(model)
        step(model)
    assert_same(ours, stock)
    assert any(p.grad is not None for p in ours.parameters())
    assert not handle.stock


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_by_their_own_flag(reentrant: bool) -> None:
    stock, ours, handle = pair(llama(attention_dropout=0.1))
    for model in (stock, ours):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()
        step(model)
        step(model)
    assert_same(ours, stock)
    assert reentrant or not handle.stock


def test_tied_head_and_autocast() -> None:
    stock, ours, _ = pair(llama(tie_word_embeddings=True))
    for model in (stock, ours):
        with torch.autocast("cpu", torch.bfloat16):
            step(model)
    assert_same(ours, stock)
