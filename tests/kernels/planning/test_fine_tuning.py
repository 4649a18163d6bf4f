"""Fine-tuning as users have it: transformers' Trainer, with and without LoRA, on a model that was planned."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from actfit import compress
from actfit.kernels.memory.step import peak_bytes

pytestmark = [  # peft asks by an old name
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*deprecated:FutureWarning"),
]

STEPS, BATCH, LENGTH, WORDS = 4, 4, 64, 97


@pytest.fixture
def transformers() -> Any:
    pytest.importorskip("accelerate", reason="accelerate, which the Trainer needs, is not installed")
    return pytest.importorskip("transformers", reason="transformers is not installed")


def model_of(transformers: Any, words: int = WORDS) -> Any:
    torch.manual_seed(0)
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": LENGTH, "vocab_size": words}
    none = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    text = {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **none, **text))


def rows(count: int) -> list[dict[str, Tensor]]:
    """Texts in which each word follows from the one before."""
    starts = torch.arange(count)[:, None] * 7
    words = (starts + 5 * torch.arange(LENGTH)) % WORDS
    return [{"input_ids": text, "labels": text} for text in words]


def batch() -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in rows(BATCH)]) for name in ("input_ids", "labels")}


def trained(transformers: Any, model: Any, folder: Path) -> list[float]:
    """Losses of steps with accumulation, autocast to bfloat16 and gradients that are clipped."""
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=2,
        bf16=True,
        max_grad_norm=0.5,
        learning_rate=3e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows(BATCH * 2 * STEPS))
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("lora", [False, True])
def test_trainer(transformers: Any, tmp_path: Path, lora: bool) -> None:
    def built() -> Any:
        model = model_of(transformers)
        if not lora:
            return model
        peft = pytest.importorskip("peft", reason="peft is not installed")
        torch.manual_seed(1)
        config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["c_attn"], fan_in_fan_out=True)
        return peft.get_peft_model(model, config)

    stock = trained(transformers, built(), tmp_path / "stock")
    model = built()
    before = peak_bytes(model, **batch())
    handle = compress(model, fit=0.3, inputs=batch())
    assert handle.plan is not None
    assert handle.plan.planned.kept <= 0.3 * handle.plan.stock.kept
    assert peak_bytes(model, **batch()) < before
    planned = trained(transformers, model, tmp_path / "planned")
    assert len(planned) == STEPS
    assert planned[0] == stock[0]  # forward is exact
    # Losses fall from the logarithm of WORDS; codes must not take away a tenth of that fall.
    assert abs(planned[-1] - stock[-1]) <= 0.1 * (stock[0] - stock[-1])


def test_trainer_with_a_loss_in_chunks(transformers: Any, tmp_path: Path) -> None:
    """It converts outputs to float32, counts the labels of all steps, and reads no logits."""
    stock = trained(transformers, model_of(transformers, 2048), tmp_path / "stock")
    model = model_of(transformers, 2048)
    handle = compress(model, chunked_loss=True)
    losses = trained(transformers, model, tmp_path / "chunks")
    assert "lm_head: its cross-entropy is computed in chunks of 128 rows" in str(handle)
    assert losses == pytest.approx(stock, rel=2**-8)  # of bfloat16
