"""Train a small Llama with transformers' Trainer, with activations saved in 8 bits.

    python examples/train_with_trainer.py

It takes less than a minute on a CPU and needs no download. Other ways to choose what is saved:

    ActfitCallback()                  # exact gradients
    ActfitCallback(fit=0.3)           # 0.3 of the bytes that are saved now
    ActfitCallback(fit="24GiB")       # the peak of forward and backward
    ActfitCallback(plan="plan.json")  # a plan that was made before
"""

import tempfile

import torch
from text import WORDS, rows
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from actfit.integrations.transformers import ActfitCallback

STEPS, BATCH, LENGTH = 20, 8, 128


def main() -> None:
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=LENGTH,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                max_steps=STEPS,
                per_device_train_batch_size=BATCH,
                learning_rate=3e-3,
                logging_steps=5,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                dataloader_pin_memory=torch.cuda.is_available(),
            ),
            train_dataset=[{"input_ids": row, "labels": row} for row in rows(STEPS * BATCH, LENGTH)],
            callbacks=[ActfitCallback(bits=8)],
        )
        trainer.train()


if __name__ == "__main__":
    main()
