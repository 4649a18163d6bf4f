"""A small GPT-2 in a Trainer, for tests of the callback."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

STEPS, BATCH, LENGTH, WORDS = 4, 4, 64, 97


def model_of(words: int = WORDS, dropout: float = 0.0) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": LENGTH, "vocab_size": words}
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    return GPT2LMHeadModel(GPT2Config(**sizes, **drops, bos_token_id=0, eos_token_id=0, use_cache=False))


def rows(count: int = BATCH * 2 * STEPS) -> list[dict[str, Tensor]]:
    """Texts in which each word follows from the one before."""
    starts = torch.arange(count)[:, None] * 7
    return [{"input_ids": text, "labels": text} for text in (starts + 5 * torch.arange(LENGTH)) % WORDS]


def trainer_of(folder: Path, callback: Any, model: Any = None, **settings: Any) -> Any:
    """A Trainer with accumulation, autocast to bfloat16 and gradients that are clipped."""
    from transformers import Trainer, TrainingArguments

    given: dict[str, Any] = {
        "max_steps": STEPS,
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": 2,
        "bf16": True,
        "max_grad_norm": 0.5,
        "learning_rate": 3e-3,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 0,
    }
    arguments = TrainingArguments(output_dir=str(folder), **given | settings)
    callbacks = [] if callback is None else [callback]
    return Trainer(model=model or model_of(), args=arguments, train_dataset=rows(), callbacks=callbacks)


def losses(trainer: Any, **resume: Any) -> list[float]:
    """The loss of each step."""
    trainer.train(**resume)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
