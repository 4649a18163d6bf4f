"""Runs of a stranger's model, to look at it, leave no trace."""

import functools
import random

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

import kernels
from kernels import KernelError, convert, saved_bytes
from tests.kernels.conversion.nets import Net, x


class Keeping(Net):
    """Puts what it computes into a list, a dictionary and an object."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Tensor] = []
        self.results: dict[str, Tensor] = {}
        self.count = torch.zeros(1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)
        self.log.append(y.detach())
        self.results["y"] = y
        self.count += 1
        return y


def test_what_forward_leaves_in_lists_and_dictionaries_goes_with_the_copy() -> None:
    net = Keeping()
    report = convert(net, inputs=x())
    assert len(report.converted) == 1
    assert (net.log, net.results, float(net.count)) == ([], {}, 0.0)


def test_caches_outside_of_a_model_are_freed_of_fakes() -> None:
    # Made here: what was there before the tests is set aside from the collection of garbage (tests/conftest.py).
    @functools.lru_cache
    def cached(size: int) -> Tensor:
        return torch.ones(size)

    class Caching(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * cached(8)

    saved_bytes(Caching(), x())
    assert not isinstance(cached(8), FakeTensor)


def test_fakes_that_cannot_be_taken_back_are_told() -> None:
    outside = []

    class Leaking(Net):
        def forward(self, x: Tensor) -> Tensor:
            outside.append(super().forward(x))
            return outside[-1]

    with pytest.raises(KernelError, match="start anew with fake=False"):
        saved_bytes(Leaking(), x())
    outside.clear()
    assert saved_bytes(Leaking(), x(), fake=False).total > 0


def test_a_models_own_train_is_not_called() -> None:
    class Merging(Net):
        def train(self, mode: bool = True) -> nn.Module:
            self.a.weight.data -= 1.0
            return super().train(mode)

    net = Merging().eval()
    weight = net.a.weight.clone()
    convert(net, inputs=x())
    assert torch.equal(net.a.weight, weight)


def test_random_numbers_of_python_are_left_alone() -> None:
    class Drawing(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * random.random()

    state = random.getstate()
    convert(Drawing(), inputs=x())
    assert random.getstate() == state


@pytest.mark.parametrize("when", ["in the first run", "in the last"])
def test_whatever_is_raised_the_model_is_as_it_was(when: str) -> None:
    class Once(Net):
        def forward(self, x: Tensor) -> Tensor:
            if when == "in the first run" or isinstance(self.act, kernels.GELU):
                raise RuntimeError("no more")
            return super().forward(x)

    net = Once()
    act = net.act
    with pytest.raises(KernelError if when == "in the first run" else RuntimeError, match="no more"):
        convert(net, "invact", inputs=x())
    assert net.act is act


def test_a_model_with_a_script_in_it_is_measured() -> None:
    script = torch.jit.script(nn.Linear(8, 8))
    net = nn.Sequential(script, nn.GELU(), nn.Linear(8, 8))
    plain = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    assert saved_bytes(net, x()).total == saved_bytes(plain, x()).total
    report, same = convert(net, inputs=x()), convert(plain, inputs=x())
    assert [site.name for site in report.converted] == ["1"]
    assert report.after.total == same.after.total


def test_nothing_is_measured_in_inference_mode() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    with torch.inference_mode(), pytest.raises(KernelError, match=r"outside of torch\.inference_mode"):
        convert(net, inputs=x())
    with torch.no_grad():
        assert len(convert(net, inputs=x()).sites) == 1
