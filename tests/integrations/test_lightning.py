"""The callback in Lightning's Trainer: exact losses, plans in checkpoints, and modules that are refused."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from actfit import KernelError, compress

lightning = pytest.importorskip("lightning", reason="lightning is not installed")
from actfit.integrations.lightning import ActfitCallback  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # Lightning warns of loggers and of workers
STEPS = 6


def block(dropout: float = 0.1) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(dropout), nn.Linear(256, 64))


class Classifier(lightning.LightningModule):  # type: ignore[name-defined]
    """Of repeated blocks, or of one; its loss is outside of the network."""

    def __init__(self, blocks: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(*(block() for _ in range(blocks)), nn.Linear(64, 10))
        if blocks == 1:
            self.net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
        self.losses: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(outputs["loss"].item())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-3)


def trained(
    folder: Path, callback: Any, module: Any = None, steps: int = STEPS, checkpoint: str | None = None, **settings: Any
) -> Any:
    """A module after training in one process."""
    module = Classifier() if module is None else module
    generator = torch.Generator().manual_seed(0)
    x, labels = torch.randn(1536, 64, generator=generator), torch.randint(10, (1536,), generator=generator)
    trainer = lightning.Trainer(
        max_steps=steps,
        callbacks=[] if callback is None else [callback],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        devices=1,
        default_root_dir=folder,
        **settings,
    )
    torch.manual_seed(1)
    trainer.fit(module, DataLoader(TensorDataset(x, labels), 256, shuffle=True), ckpt_path=checkpoint)
    module.checkpoint = str(folder / "last.ckpt")
    trainer.save_checkpoint(module.checkpoint)
    return module


def test_a_budget_counts_the_trainers_optimizer(tmp_path: Path) -> None:
    callback = ActfitCallback(fit="1GB", optimizer=True)
    module = trained(tmp_path, callback, steps=1)
    plan = callback.compression.plan
    assert plan is not None
    assert plan.optimizer == "AdamW"
    assert plan.stock.peak > 4 * sum(weight.nbytes for weight in module.parameters())


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("given", [{}, {"bits": 8}, {"fit": 0.3}], ids=str)
def test_a_training(given: dict[str, Any], precision: Any, tmp_path: Path) -> None:
    """Planning and measuring draw nothing from the data and from random numbers: dropout is stock's."""
    stock = trained(tmp_path, None, precision=precision).losses
    callback = ActfitCallback(**given)
    module = trained(tmp_path, callback, precision=precision)
    assert len(stock) == STEPS
    assert module.losses == stock if not given else module.losses[0] == stock[0]
    assert "saved for backward" in callback.compression.line or "kept for backward" in callback.compression.line
    assert not {"forward", "log", "log_dict"} & set(vars(module))
    compress(module).remove()  # it was given back, and can be compressed again


def test_the_plan_is_by_the_loss_of_the_training_step(tmp_path: Path) -> None:
    callback = ActfitCallback(fit=0.3)
    trained(tmp_path, callback)
    plan = callback.compression.plan
    assert plan is not None
    assert plan.model == "Classifier"
    assert plan.planned.kept <= 0.3 * plan.stock.kept


def test_the_plan_is_in_the_checkpoint_and_taken_up(tmp_path: Path) -> None:
    first = ActfitCallback(fit=0.3)
    module = trained(tmp_path, first, steps=3)
    second = ActfitCallback(fit=0.5)
    trained(tmp_path, second, steps=STEPS, checkpoint=module.checkpoint)
    assert second.compression.plan == first.compression.plan
    assert "budget 0.3" in second.compression.line


def test_a_part_is_compressed_at_its_first_input(tmp_path: Path) -> None:
    stock = trained(tmp_path, None, Classifier(1)).losses
    callback = ActfitCallback("net")
    module = trained(tmp_path, callback, Classifier(1))
    assert module.losses == stock
    assert "saved for backward 256.0 KiB, 512.0 KiB before" in callback.compression.line
    assert "forward" not in vars(module.net)


@pytest.mark.parametrize(
    ("part", "module", "message"),
    [
        ("", lambda: Classifier(1), 'part must be given for a Classifier, .* write ActfitCallback\\("net"\\)'),
        ("nett", Classifier, "part must be a part of Classifier, as net, got 'nett'"),
        ("", lambda: torch.compile(Classifier()), "module must not be compiled with ActfitCallback"),
    ],
)
def test_modules_that_are_refused(part: str, module: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=message):
        trained(tmp_path, ActfitCallback(part, bits=8), module())


def test_an_exception_gives_the_module_back(tmp_path: Path) -> None:
    class Failing(Classifier):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            raise InterruptedError

    module = Failing()
    with pytest.raises(InterruptedError):
        trained(tmp_path, ActfitCallback(bits=8), module)
    compress(module).remove()


def test_without_lightning_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, "actfit.integrations.lightning")
    with pytest.raises(ImportError, match=r"needs PyTorch and Lightning; pip install torch lightning$"):
        import actfit.integrations.lightning  # noqa: F401
