"""Histograms of activations' inputs: the counts, the samples made of them, and the tables fitted to these."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from actfit import KernelError
from actfit.kernels.record import Histogram, recorded
from actfit.kernels.record.histograms import BINS, EDGES, PER_OCTAVE


class Net(nn.Module):
    """A model of modules, functions and methods, one of them used twice, one in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act = nn.Linear(8, 16), nn.GELU(approximate="tanh")
        self.inner = nn.Sequential(nn.Linear(16, 8), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(self.act(self.first(x)))
        return F.silu(torch.sigmoid(x)) + x.tanh() + F.silu(input=x)


def counted(*values: float) -> Histogram:
    histogram = Histogram()
    histogram.add(torch.tensor(values, dtype=torch.float64))
    return histogram


def test_each_place_has_its_histogram() -> None:
    torch.manual_seed(0)
    net, x = Net(), torch.randn(5, 8)
    with recorded(net) as histograms:
        net(x)
        net(x[:2])
    assert {name: int(histogram.counts.sum()) for name, histogram in histograms.items()} == {
        "act.gelu_tanh": 7 * 16,
        "inner.1.relu": 7 * 8,
        "sigmoid": 7 * 8,
        "tanh": 7 * 8,
        "silu": 2 * 7 * 8,
    }


def test_nothing_else_changes() -> None:
    torch.manual_seed(0)
    net, x = Net(), torch.randn(5, 8, requires_grad=True)
    plain, expected = net(x), torch.autograd.grad(net(x).sum(), [x, *net.parameters()])
    with recorded(net) as histograms:
        assert torch.equal(net(x), plain)
        assert all(map(torch.equal, torch.autograd.grad(net(x).sum(), [x, *net.parameters()]), expected))
    before = {name: histogram.counts.clone() for name, histogram in histograms.items()}
    net(x)
    assert all(torch.equal(histograms[name].counts, counts) for name, counts in before.items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=200), st.integers(1, 50))
def test_samples_are_quantiles_to_the_width_of_a_bin(values: list[float], count: int) -> None:
    samples = counted(*values).samples(count)
    exact = np.sort(values)[np.floor((np.arange(count) + 0.5) / count * len(values)).astype(int)]
    # Quantiles agree with the list's up to the width of a bin, a 32nd of the value.
    assert np.all(np.abs(samples - exact) <= np.abs(exact) / PER_OCTAVE + EDGES[BINS + 1])
    assert np.all(np.diff(samples) >= 0)


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"model must be a torch.nn.Module, got str"), recorded("gelu"):  # type: ignore[arg-type]
        pass
    with pytest.raises(KernelError, match="histogram must have counted something, got none"):
        Histogram().samples()
    with pytest.raises(KernelError, match=r"path must end in .npy, got '.*gelu.txt'"):
        counted(1.0).save(tmp_path / "gelu.txt")
    assert list(tmp_path.iterdir()) == []
