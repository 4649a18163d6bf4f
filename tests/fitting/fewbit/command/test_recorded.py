"""actfit fewbit --record: tables of a user's own model, from a run of it in another process."""

from pathlib import Path

import numpy as np
import pytest

from actfit.fitting.activations import get
from actfit.fitting.fewbit.solve import fit
from actfit.fitting.weights import from_samples
from tests.fitting.commands import files, process, stored

pytest.importorskip("torch")

MODELS = """
import torch
from torch import nn


def build():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4), nn.GELU(), nn.ReLU()), torch.randn(50, 8)
"""


@pytest.fixture
def models(folder: Path) -> str:
    (folder / "models.py").write_text(MODELS)
    return "models"


@pytest.mark.slow
def test_a_table_for_each_place(models: str) -> None:
    import torch

    import actfit

    words = ("--fn", "gelu", "--bits", "2", "--record", f"{models}:build", "--out", "tables")
    done = process("fewbit", *words)
    assert (done.returncode, done.stderr) == (0, "")
    *lines, usage = done.stdout.splitlines()
    assert [line.split()[-1] for line in lines] == ["tables/1.gelu.json", "tables/3.gelu.json"]
    assert files("tables") == ["1.gelu.json", "1.gelu.npy", "3.gelu.json", "3.gelu.npy"]
    made = fit(get("gelu"), 2, weight=from_samples(np.load("tables/1.gelu.npy")))
    assert stored("tables/1.gelu.json")["solution"]["levels"] == made.steps.levels.tolist()
    assert stored("tables/1.gelu.json") != stored("tables/3.gelu.json")
    x = torch.linspace(-4, 4, 99).requires_grad_()
    y = eval(usage, {"actfit": actfit, "x": x})  # the printed line is what a user runs
    assert torch.equal(y, torch.nn.functional.gelu(x))
    (slopes,) = torch.autograd.grad(y.sum(), x)
    assert set(slopes.tolist()) <= set(torch.tensor(made.steps.levels.tolist()).tolist())


def test_what_the_model_refuses_is_said_once(models: str) -> None:
    done = process("fewbit", "--fn", "silu", "--bits", "2", "--record", f"{models}:build", "--out", "tables")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "record: models:build must call silu, got gelu, relu\n"
    assert not Path("tables").exists()
