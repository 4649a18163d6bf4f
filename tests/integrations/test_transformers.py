"""The callback in transformers' Trainer: exact losses, plans in checkpoints, adapters, settings that are refused."""

import gc
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from actfit import KernelError, Plan, compress
from tests.integrations.training import STEPS, losses, model_of, trainer_of

pytest.importorskip("accelerate", reason="accelerate, which the Trainer needs, is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
from actfit.integrations.transformers import PLAN_FILE, ActfitCallback

pytestmark = [  # peft asks by an old name
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*deprecated:FutureWarning"),
]


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("actfit: ")]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    trainer = trainer_of(tmp_path_factory.mktemp("stock"), None, model_of(dropout=0.1), save_strategy="no")
    return losses(trainer)


@pytest.mark.parametrize("given", [{}, {"bits": 8}, {"fit": 0.3}], ids=str)
def test_a_training(given: dict[str, Any], stock: list[float], tmp_path: Path, capsys: Any) -> None:
    """Planning and measuring draw nothing from the data and from random numbers: dropout is stock's."""
    model = model_of(dropout=0.1)
    callback = ActfitCallback(**given)
    found = losses(trainer_of(tmp_path, callback, model, save_strategy="no"))
    (line,) = lines(capsys.readouterr().out)
    assert line == callback.compression.line
    if not given:
        assert found == stock
    assert found[0] == stock[0]
    # Losses fall from the logarithm of the number of words; codes must not take away a tenth of that fall.
    assert abs(found[-1] - stock[-1]) <= 0.1 * (stock[0] - stock[-1])
    assert re.search(r"[\d.]+ [KM]iB", line)
    compress(model).remove()  # it was given back, and can be compressed again


def test_a_budget_counts_the_trainers_optimizer(tmp_path: Path, capsys: Any) -> None:
    """Its state, and gradients, which are there throughout if several batches are added up."""
    peaks = []
    for batches in (1, 2):
        callback = ActfitCallback(fit="3.5MB", optimizer=True)
        losses(trainer_of(tmp_path, callback, save_strategy="no", gradient_accumulation_steps=batches, max_steps=1))
        (line,) = lines(capsys.readouterr().out)
        assert "peak of training with AdamW" in line
        plan = callback.compression.plan
        assert plan is not None
        assert plan.optimizer == "AdamW"
        peaks.append((plan.stock.peak, plan.planned.peak))
    (stock, planned), (more, others) = peaks
    weights = sum(weight.nbytes for weight in model_of().parameters())
    assert 0 < more - stock <= weights
    assert 3 * weights < max(planned, others) <= 3.5e6


def test_the_plan_is_beside_checkpoints_and_taken_up(tmp_path: Path, capsys: Any) -> None:
    straight = losses(trainer_of(tmp_path, ActfitCallback(fit=0.3), save_steps=2, save_strategy="steps"))
    plan = (tmp_path / PLAN_FILE).read_text("utf-8")
    checkpoint = tmp_path / "checkpoint-2"
    assert (checkpoint / PLAN_FILE).read_text("utf-8") == plan
    assert Plan.load(checkpoint / PLAN_FILE).to_json() == plan
    marked = json.loads(plan) | {"model": "The one of the checkpoint"}
    (checkpoint / PLAN_FILE).write_text(json.dumps(marked), "utf-8")
    capsys.readouterr()
    trainer = trainer_of(tmp_path, ActfitCallback(fit=0.3), save_strategy="no")
    resumed = losses(trainer, resume_from_checkpoint=str(checkpoint))
    assert resumed == straight
    (line,) = lines(capsys.readouterr().out)
    assert "The one of the checkpoint, budget 0.3" in line
    # A checkpoint without a plan is planned anew, unless training is at its end.
    for path in tmp_path.rglob(PLAN_FILE):
        path.unlink()
    losses(trainer, resume_from_checkpoint=True)
    assert not lines(capsys.readouterr().out)
    losses(trainer, resume_from_checkpoint=str(checkpoint))
    (line,) = lines(capsys.readouterr().out)
    assert "budget 0.3" in line
    assert "The one of the checkpoint" not in line


def test_adapters(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")

    def adapted() -> Any:
        torch.manual_seed(1)
        config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["c_attn"], fan_in_fan_out=True)
        return peft.get_peft_model(model_of(), config)

    expected = losses(trainer_of(tmp_path, None, adapted(), save_strategy="no"))
    assert losses(trainer_of(tmp_path, ActfitCallback(), adapted(), save_strategy="no")) == expected


# Settings of the Trainer.


def test_checkpointing_goes_with_exact_gradients(tmp_path: Path) -> None:
    flag = {"gradient_checkpointing": True, "save_strategy": "no"}
    expected = losses(trainer_of(tmp_path, None, **flag))
    assert losses(trainer_of(tmp_path, ActfitCallback(), **flag)) == expected


@pytest.mark.parametrize("given", [{"bits": 8}, {"fit": 0.3}], ids=str)
def test_checkpointing_is_refused_for_approximate_gradients(given: dict[str, Any], tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, ActfitCallback(**given), gradient_checkpointing=True)
    with pytest.raises(KernelError, match=r"^gradient_checkpointing must be False for approximate gradients, got True"):
        trainer.train()
    assert "forward" not in vars(trainer.model.transformer.h[0])


def test_compiling_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"^torch_compile must be False .* ActfitCallback\(\.\.\., compiled=True\)"):
        trainer_of(tmp_path, ActfitCallback(bits=8), torch_compile=True)


def test_the_way_out_of_compiling(tmp_path: Path) -> None:
    plain = {"bf16": False, "gradient_accumulation_steps": 1}
    expected = losses(trainer_of(tmp_path, None, save_strategy="no", max_steps=2, **plain))
    callback = ActfitCallback(bits=8, compiled=True)
    found = losses(trainer_of(tmp_path, callback, save_strategy="no", max_steps=2, **plain))
    # Compiled code rounds otherwise, by some bits of float32 in sums of 256 numbers; codes make the second loss err.
    assert found[0] == pytest.approx(expected[0], rel=2**-16)
    assert found[1] != expected[1]
    assert abs(found[1] - expected[1]) <= 0.1 * abs(expected[0] - expected[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"deepspeed": {"stage": 3}}, "deepspeed must be None"), ({"n_gpu": 2}, "n_gpu must be 1 .* got 2; .* torchrun")],
)
def test_what_was_not_tried_is_refused(settings: dict[str, Any], message: str) -> None:
    from types import SimpleNamespace

    arguments = SimpleNamespace(
        **{"torch_compile": False, "deepspeed": None, "n_gpu": 1, "gradient_accumulation_steps": 1} | settings
    )
    with pytest.raises(KernelError, match=message):
        ActfitCallback().on_init_end(arguments, None, None)


# When training ends.


def test_a_training_that_breaks_off_and_begins_again(tmp_path: Path, capsys: Any) -> None:
    model, callback = model_of(), ActfitCallback(bits=8)
    trainer = trainer_of(tmp_path, callback, model, save_strategy="no")
    step = trainer.training_step

    def failing(*args: Any) -> Any:
        step(*args)
        raise InterruptedError

    trainer.training_step = failing
    with pytest.raises(InterruptedError):
        trainer.train()
    trainer.training_step = step
    assert len(losses(trainer)) == STEPS
    assert len(lines(capsys.readouterr().out)) == 2
    compress(model).remove()


@pytest.mark.parametrize("waits", [False, True])
def test_another_trainer_takes_a_model_whose_training_broke_off(waits: bool, tmp_path: Path) -> None:
    """As where the cell of a notebook is stopped and run again: the callback that compressed the model is gone."""
    model = model_of()

    def break_off() -> None:
        trainer = trainer_of(tmp_path, ActfitCallback(bits=8), model, save_strategy="no")
        step = trainer.training_step

        def failing(*args: Any) -> Any:
            if not waits:
                step(*args)
            raise InterruptedError

        trainer.training_step = failing
        with pytest.raises(InterruptedError):
            trainer.train()

    break_off()
    gc.collect()
    model.load_state_dict(model_of().state_dict())
    found = losses(trainer_of(tmp_path, ActfitCallback(), model, save_strategy="no"))
    assert found == losses(trainer_of(tmp_path, None, save_strategy="no"))
    compress(model).remove()


def test_two_callbacks_are_refused(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, ActfitCallback(), save_strategy="no")
    trainer.add_callback(ActfitCallback(bits=8))
    with pytest.raises(KernelError, match=r"^callbacks must have one ActfitCallback, .*; leave one out"):
        trainer.train()


def test_a_training_without_a_step_leaves_the_model(tmp_path: Path) -> None:
    callback = ActfitCallback(bits=8)
    trainer = trainer_of(tmp_path, callback, save_strategy="no")
    callback.on_train_begin(trainer.args, trainer.state, trainer.control, model=trainer.model)
    assert "forward" in vars(trainer.model)
    callback.on_train_end(trainer.args, trainer.state, trainer.control, model=trainer.model)
    assert "forward" not in vars(trainer.model)


def test_without_transformers_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "actfit.integrations.transformers")
    with pytest.raises(
        ImportError, match=r"needs PyTorch and transformers; pip install torch transformers accelerate$"
    ):
        import actfit.integrations.transformers  # noqa: F401
