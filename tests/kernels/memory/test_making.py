"""Models that a user's own function makes."""

import sys

import pytest
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from actfit.kernels.errors import KernelError
from actfit.kernels.memory.zoo import build
from tests.kernels.memory.models import tensors

THEIRS = """
from copy import deepcopy

import torch
from torch import nn

calls = []
table = nn.Embedding(5, 4)

class Tied(nn.Module):
    def __init__(self, rate=0.0):
        super().__init__()
        self.first, self.second, self.rate = nn.Linear(4, 4), nn.Linear(4, 4), rate
        self.second.weight = self.first.weight

    def forward(self, x, factor=1):
        return self.second(self.first(x)) * factor

def tensor(): return Tied(), torch.ones(2, 4)
def several(): return Tied(), (torch.ones(2, 4), 3)
def named(): return Tied().eval(), {"x": torch.ones(2, 4)}
def truncated():
    model = Tied()
    nn.init.trunc_normal_(model.first.weight)
    return model, torch.ones(2, 4)
def stochastic():
    calls.append(type(torch.ones(1)).__name__)
    rates = [one.item() for one in torch.linspace(0, 0.5, 3)]
    return Tied(rates[-1]), torch.ones(2, 4)
def copied(): return deepcopy(Tied()), torch.ones(2, 4)  # as nn.Transformer does with its layers
def branching(): return Tied(1.0 if torch.ones(1).sum() > 0 else 0.0), torch.ones(2, 4)
def elsewhere(): return table, torch.zeros(2, dtype=torch.int64)
def wrong(): return Tied()
def parted(): return torch.ones(2, 4), Tied()
def slip():
    calls.append("slip")
    return Tied(), torch.ones(undefined)
def broken(): raise RuntimeError("first line\\nsecond line")
"""


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    (tmp_path / "their_models.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(tmp_path)
    yield "their_models"
    sys.modules.pop("their_models", None)


@pytest.mark.parametrize(
    "function", ["tensor", "several", "named", "truncated", "stochastic", "copied", "branching", "elsewhere"]
)
@pytest.mark.parametrize("mode", ["fake", "real"])
def test_the_user_s_own(theirs, function, mode, request):
    if mode == "fake":
        request.getfixturevalue("fake")
    model, args, kwargs = build(f"{theirs}:{function}")
    assert all(isinstance(tensor, FakeTensor) == (mode == "fake") for tensor in tensors(model, args, kwargs))
    assert isinstance(model(*args, **kwargs), FakeTensor if mode == "fake" else Tensor)
    assert model.training == (function != "named")
    if function != "elsewhere":
        assert model.second.weight is model.first.weight
        assert model.rate == {"stochastic": 0.5, "branching": 1.0}.get(function, 0.0)


def test_real_tensors_are_made_only_for_what_needs_them(theirs, fake):
    build(f"{theirs}:stochastic")
    with pytest.raises(KernelError, match="their_models:slip raised NameError: name 'undefined'"):
        build(f"{theirs}:slip")
    assert sys.modules[theirs].calls == ["FakeTensor", "Tensor", "slip"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("wrong", "their_models:wrong must give a model and a tensor, tuple or dictionary of inputs, got Tied"),
        ("parted", "their_models:parted must give .*, got FakeTensor, Tied"),
        ("broken", "their_models:broken raised RuntimeError: first line$"),
    ],
)
def test_what_the_user_got_wrong(theirs, function, message, fake):
    with pytest.raises(KernelError, match=message):
        build(f"{theirs}:{function}")
