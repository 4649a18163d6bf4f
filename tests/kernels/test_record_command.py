"""`actfit record`: a file of samples for each activation of a user's model."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from actfit import KernelError
from actfit.coefficients import command
from actfit.kernels.record import recorded
from actfit.kernels.record.__main__ import SEED, main

MODELS = """
import torch
from torch import nn


def build():
    print("building")
    layers = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4), nn.ReLU()
    return nn.Sequential(*layers), torch.randn(50, 8)


def odd_name():
    model = nn.Sequential()
    model.add_module("a/b", nn.GELU())
    return model, torch.randn(3)


def misfit():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU()), torch.randn(3, 5)


def plain():
    return nn.Linear(8, 16), torch.randn(3, 8)


def lone():
    return nn.GELU()


def broken():
    raise ValueError("no weights\\nhere")
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a user's module, which can be imported."""
    (tmp_path / "recorded_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "recorded_models", raising=False)
    return "recorded_models"


def test_files_hold_what_activations_are_given(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{models}:build", "--out", "some/folder", "--format", "json"]) == command.GOOD
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"1.gelu": "some/folder/1.gelu.npy", "3.relu": "some/folder/3.relu.npy"}
    assert printed.err == "building\n"
    from recorded_models import build  # type: ignore[import-not-found]

    torch.manual_seed(SEED)
    model, x = build()
    with recorded(model) as histograms:
        model(x)
    for site, histogram in histograms.items():
        assert np.array_equal(np.load(f"some/folder/{site}.npy"), histogram.samples())


def test_one_function_as_a_table(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{models}:build", "--out", "folder", "--fn", "gelu"]) == command.GOOD
    assert capsys.readouterr().out.split() == ["1.gelu", "800", "inputs", "folder/1.gelu.npy"]
    assert [path.name for path in Path("folder").iterdir()] == ["1.gelu.npy"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("none:build", "model must be a function that can be imported, got 'none:build': ModuleNotFoundError: No"),
        ("MODELS:broken", "MODELS:broken raised ValueError: no weights"),
        ("MODELS:lone", "MODELS:lone must give a model and a tensor, tuple or dictionary of inputs, got GELU"),
        ("MODELS:misfit", "MODELS:misfit must give a model that runs with its inputs, got RuntimeError: .*mat1 and"),
        ("MODELS:plain", "MODELS:plain must call a function of the catalogue, got none"),
        ("MODELS:build --fn silu", "MODELS:build must call silu, got gelu, relu"),
        ("MODELS:odd_name", "names of modules must do as names of files, got 'a/b.gelu'; record in Python"),
        ("MODELS:build --fn sine", "fn must be one of relu, .*, got 'sine'"),
        ("MODELS:build --out recorded_models.py", "out must be a folder, got 'recorded_models.py'"),
        ("MODELS", "model must be module:function that gives model and inputs, got 'MODELS'"),
    ],
)
def test_what_is_refused_in_one_line(models: str, words: str, message: str) -> None:
    given = [word.strip("'") for word in words.replace("MODELS", models).split()]
    with pytest.raises(KernelError, match=message.replace("MODELS", models)) as refused:
        main([*given, *(() if "--out" in given else ("--out", "folder"))])
    assert "\n" not in str(refused.value)
    assert not Path("folder").exists()
