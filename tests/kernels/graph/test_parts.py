"""Forwards that PyTorch cannot capture whole: what is captured in their place, and that measures say what is saved."""

import copy
import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from actfit import KernelError, compress, saved_bytes
from tests.kernels.graph.broken import (
    CANNOT,
    COUNTS,
    Inside,
    Listing,
    Looping,
    Silencing,
    Towers,
    Trying,
    kept,
)
from tests.kernels.graph.nets import assert_same, batch, pair, steps, tower


def blocks(kind: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(kind() for _ in range(3)))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "try": Trying,
    "with": Silencing,
    "for": Looping,
    "list": Listing,
    "a part": Inside,
    "blocks with try": blocks(Trying),
    "blocks with for": blocks(Looping),
    "blocks with lists": blocks(Listing),
    "blocks of which a part": blocks(Inside),
}


@pytest.mark.filterwarnings(CANNOT)
@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("name", MODELS)
def test_parts_of_what_cannot_be_captured(name: str, bits: int | None) -> None:
    """From the first call on they save what `saved_bytes` says: one of two tensors of each tower, or its code."""
    stock, ours, handle = pair(MODELS[name](), bits=bits)
    x = batch(512, 32)
    before, told = kept(stock, x), saved_bytes(ours, x).total
    assert before == pytest.approx(saved_bytes(stock, x).total, abs=COUNTS)
    for _ in range(2):
        steps((stock, ours), lambda model: model(x).square().sum())
        assert kept(ours, x) == pytest.approx(told, abs=COUNTS)
        assert told < before * (0.65 if bits is None else 0.3)
    if bits is None:
        assert_same(ours, stock)
    assert handle.stock


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_what_is_around_recurrent_layers_is_captured(kind: type[nn.RNNBase]) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.cells, self.last = tower(512), kind(32, 32), tower(512)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.last(self.cells(self.first(x))[0])
            return made

    with warnings.catch_warnings(action="error"):
        stock, ours, handle = pair(Net())
        x = batch(512, 32).view(8, 64, 32)
        before = kept(stock, x)
        steps((stock, ours), lambda model: model(x).square().sum(), 2)
    assert_same(ours, stock)
    halves = 2 * 512 * 512 * 4  # the result of each tower's GELU
    assert kept(ours, x) <= before - halves
    assert handle.stock == {"cells": "PyTorch's compiler captures no recurrent layers"}
    assert len(handle.report.graphs) == 2


def test_methods_other_than_forward() -> None:
    stock = Towers()
    ours, x = copy.deepcopy(stock), batch(512, 32)
    handle = compress(ours)
    steps((stock, ours), lambda model: model.encode(x).square().sum(), 2)  # type: ignore[operator]
    assert_same(ours, stock)
    assert kept(ours.encode, x) < kept(stock.encode, x) / 1.5
    assert saved_bytes(ours.encode, x).total == pytest.approx(kept(ours.encode, x), abs=COUNTS)
    assert handle.names == ("", "first")
    steps((stock, ours), lambda model: model(x).square().sum(), 2)
    assert_same(ours, stock)
    assert len(handle.report.graphs) == 2  # the whole is a graph of its own
    handle.remove()
    assert all("forward" not in vars(module) for module in ours.modules())


def test_a_model_without_a_forward() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator, self.critic = tower(256), nn.ModuleDict({"x": tower(256)})

    stock, ours, handle = pair(Pair())
    assert handle.names == ("generator", "critic.x")
    x = batch(512, 32)
    steps((stock, ours), lambda model: model.critic["x"](model.generator(x)).square().sum(), 2)  # type: ignore[index, operator]
    assert_same(ours, stock)


def test_an_error_of_forward_is_not_one_of_capture() -> None:
    _, ours, handle = pair(Trying())
    with warnings.catch_warnings(action="error"):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
                ours(batch(8, 31))
    assert not handle.stock
    with pytest.warns(UserWarning, match="the model cannot be captured whole, but in parts: ") as told:
        ours(batch(8, 32)).sum().backward()
    assert handle.stock
    assert [warning.filename for warning in told] == [__file__]


@pytest.mark.filterwarnings(CANNOT)
def test_copies_and_removal() -> None:
    stock, ours, handle = pair(nn.Sequential(Trying(), Trying()))
    x = batch(512, 32)
    steps((ours,), lambda model: model(x).square().sum())
    with warnings.catch_warnings(action="error"):  # they know that it cannot be captured
        for made in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            made.zero_grad()
            steps((stock, made), lambda model: model(x).square().sum(), 2)
            assert_same(made, stock)
            assert kept(made, x) == kept(ours, x)
    with pytest.raises(KernelError, match="must not be compressed already"):
        compress(ours)
    handle.remove()
    assert all("forward" not in vars(module) for module in ours.modules())


def test_methods_within_torch_compile() -> None:
    """The user's compiler leaves parts to their own graphs, and a warning says what to write."""
    ours, x = Towers(), batch(512, 32)
    compress(ours)
    stock = kept(Towers().encode, x)
    encode = torch.compile(ours.encode, backend="eager")
    with pytest.warns(UserWarning, match="torch.compile runs a model that compress"):
        encode(x).sum().backward()
    assert kept(encode, x) < 0.8 * stock
