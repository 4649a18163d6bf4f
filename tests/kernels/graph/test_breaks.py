"""Forwards that PyTorch captures in several graphs, or not at all: what measures, names and plans say of them."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from actfit import KernelError, compress, make_plan, peak_bytes, saved_bytes
from tests.kernels.graph.broken import (
    CANNOT,
    Deep,
    Printing,
    Reading,
    Rest,
    Towers,
    Trying,
    kept,
)
from tests.kernels.graph.nets import assert_same, batch, pair, steps


@pytest.mark.filterwarnings(CANNOT)
@pytest.mark.parametrize("before", ["nothing", "compile", "mode"])
def test_what_torch_left_before_is_captured(before: str) -> None:
    """Of all classes in a block; PyTorch remembers what it left in this process."""
    stock, ours, handle = pair(nn.Sequential(Rest(), Rest()))
    x = batch(512, 32)
    if before == "compile":
        torch.compile(copy.deepcopy(stock), backend="eager")(x)
    if before == "mode":
        with (
            pytest.warns(UserWarning, match="ran as stock: within a TorchDispatchMode"),
            FlopCounterMode(display=False),
        ):
            ours(x)
    steps((stock, ours), lambda model: model(x).square().sum(), 3)
    assert_same(ours, stock)
    assert kept(ours, x) < 0.65 * kept(stock, x)
    assert set(handle.names) == {"0.first", "0.second", "1.first", "1.second"}
    torch._dynamo.reset()


class Swallowing(Towers):
    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.second(self.first(x * float(x.max().item() > 0)))
        except Exception:
            return x * self.first[2].bias


def test_a_forward_that_catches_what_fake_tensors_raise() -> None:
    model, x = Swallowing(), batch(512, 32)
    assert saved_bytes(model, x).total == saved_bytes(model, x, fake=False).total > x.nbytes
    for refused in (lambda: peak_bytes(model, x), lambda: compress(model, fit=0.5, inputs=x)):
        with pytest.raises(KernelError, match=r"must run on fake tensors, .* have no numbers to read"):
            refused()


class Twice(nn.Module):
    """Calls the same code with a part of the batch, and with all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Reading(), Reading()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.first(x[:8]).sum() + self.second(x.sin()).sum()
        return made


class TwicePrinting(Twice):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Printing(), Printing()


@pytest.mark.filterwarnings(CANNOT)
def test_bytes_of_inner_frames_of_several_sizes() -> None:
    ours, x = TwicePrinting(), batch(512, 32)
    compress(ours, bits=8)
    for _ in range(2):
        ours(x).backward()
    assert saved_bytes(ours, x).total == pytest.approx(kept(ours, x), rel=0.05)  # small tensors of changing sizes


@pytest.mark.filterwarnings("ignore:the peak must leave out")
def test_the_workspace_of_an_lstm_counts() -> None:
    model, x = nn.LSTM(32, 64, batch_first=True), batch(512, 32).view(8, 64, 32)
    assert (
        saved_bytes(model, x).total == saved_bytes(model, x, fake=False).total > saved_bytes(model, x, fake=True).total
    )
    with pytest.warns(UserWarning, match="the peak must leave out"):
        peak_bytes(model, x)


def test_numpy_in_a_forward_draws_its_own_numbers() -> None:
    draws = np.random.RandomState(0)

    class Noisy(Towers):
        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.second(self.first(x) + torch.from_numpy(draws.randn(32)).float())
            return made

    stock, ours, _ = pair(Noisy())
    left = []
    for model in (stock, ours):
        draws.seed(0)
        torch.manual_seed(0)
        model(batch(96, 32)).sum().backward()
        left.append((torch.rand(1), draws.rand()))
    assert_same(ours, stock)
    assert left[0] == left[1]


@pytest.mark.filterwarnings(CANNOT)
def test_a_plan_of_a_forward_that_prints() -> None:
    ours, x = nn.Sequential(Printing(), Printing(), nn.Linear(32, 8)), batch(512, 32)
    handle = compress(ours, plan=make_plan(ours, x, 0.3, goal="error"))
    assert handle.plan is not None
    ours(x).sum().backward()
    assert saved_bytes(ours, x).total == handle.plan.planned.kept


@pytest.mark.filterwarnings(CANNOT)
def test_a_plan_of_parts() -> None:
    ours, x = nn.Sequential(Trying(), Trying()), batch(512, 32)
    limit = int(peak_bytes(ours, x) * 0.7)
    handle = compress(ours, fit=f"{limit}B", inputs=x)
    assert handle.plan is not None
    steps((ours,), lambda model: model(x).square().sum(), 2)
    assert peak_bytes(ours, x) <= limit
    assert torch.equal(ours(x), ours(x))


def test_names_are_those_in_the_model() -> None:
    """Of graphs of inner frames, too, and of parts by whose wrappers PyTorch comes to them."""
    _, ours, handle = pair(nn.Sequential(Deep(), nn.Dropout(0.0)), bits=8)
    ours(batch(512, 32)).sum().backward()
    names = {row.site.rpartition(": ")[0] for graph in handle.report.graphs for row in graph.crossings if row.site}
    assert {"0.inner.first.0", "0.inner.second.0", "0.last.0"} <= names <= {name for name, _ in ours.named_modules()}
