"""Fine-tuning as users have it: transformers' Trainer, with and without LoRA, on a model that was planned."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from actfit import compress
from actfit.kernels.memory.step import peak_bytes
from tests.integrations.training import BATCH, STEPS, losses, model_of, rows, trainer_of

for library in ("accelerate", "transformers"):
    pytest.importorskip(library, reason=f"{library} is not installed")
pytestmark = [  # peft asks by an old name
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*deprecated:FutureWarning"),
]


def batch() -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in rows(BATCH)]) for name in ("input_ids", "labels")}


def trained(model: Any, folder: Path) -> list[float]:
    return losses(trainer_of(folder, None, model, save_strategy="no"))


@pytest.mark.parametrize("lora", [False, True])
def test_trainer(tmp_path: Path, lora: bool) -> None:
    def built() -> Any:
        model = model_of()
        if not lora:
            return model
        peft = pytest.importorskip("peft", reason="peft is not installed")
        torch.manual_seed(1)
        config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["c_attn"], fan_in_fan_out=True)
        return peft.get_peft_model(model, config)

    stock = trained(built(), tmp_path / "stock")
    model = built()
    before = peak_bytes(model, **batch())
    handle = compress(model, fit=0.3, inputs=batch())
    assert handle.plan is not None
    assert handle.plan.planned.kept <= 0.3 * handle.plan.stock.kept
    assert peak_bytes(model, **batch()) < before
    planned = trained(model, tmp_path / "planned")
    assert len(planned) == STEPS
    assert planned[0] == stock[0]  # forward is exact
    # Losses fall from the logarithm of WORDS; codes must not take away a tenth of that fall.
    assert abs(planned[-1] - stock[-1]) <= 0.1 * (stock[0] - stock[-1])


def test_trainer_with_a_loss_in_chunks(tmp_path: Path) -> None:
    """It converts outputs to float32, counts the labels of all steps, and reads no logits."""
    stock = trained(model_of(2048), tmp_path / "stock")
    model = model_of(2048)
    handle = compress(model, chunked_loss=True)
    found = trained(model, tmp_path / "chunks")
    assert "lm_head: its cross-entropy is computed in chunks of 128 rows" in str(handle)
    assert found == pytest.approx(stock, rel=2**-8)  # of bfloat16
