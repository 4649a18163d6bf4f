"""Blocks that backward computes again, where codes alone do not fit or do too much."""

import pytest
import torch
from torch import Tensor, nn

from actfit import KernelError, compress, make_plan, saved_bytes
from actfit.kernels.graph.planning import CapturedTask
from actfit.kernels.memory.step import peak_bytes
from actfit.kernels.planning.batches import call_of
from actfit.kernels.planning.blocks import BlockWays, recomputing, repeated_blocks
from actfit.kernels.planning.planner import plan_of
from tests.kernels.planning.nets import NETS, Attending, gradient, text


class Listed(nn.Module):
    """Blocks in a list, and another list within each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(3))
        self.first = nn.ModuleList([nn.Linear(8, 8)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_blocks_are_the_outermost_that_repeat() -> None:
    assert repeated_blocks(Listed()) == ["layers.0", "layers.1", "layers.2"]
    assert repeated_blocks(text(2)[0]) == ["0", "1"]
    assert repeated_blocks(NETS["mlp"]()[0]) == []  # single layers


def test_the_gradient_of_whole_tensors_is_exact() -> None:
    model, inputs = text(2, dropout=0.1)
    torch.manual_seed(1)
    exact = gradient(model, inputs)
    with recomputing(model, ["0", "1"]):
        torch.manual_seed(1)
        assert all(map(torch.equal, gradient(model, inputs), exact))
    assert all("forward" not in vars(module) for module in model.modules())


@pytest.mark.slow
def test_few_blocks_are_computed_again_where_codes_do_not_fit() -> None:
    model, inputs = text(4)
    kept, task = saved_bytes(model, *inputs).total, CapturedTask(model, call_of(inputs))
    assert not plan_of(task, 0.2, goal="error").recomputed
    plan = plan_of(task, 0.05, goal="error")
    assert list(plan.recomputed) == [str(place) for place in range(len(plan.recomputed))]
    assert 0 < len(plan.recomputed) < 4
    assert "computed again in backward: block" in str(plan)
    handle = compress(model, plan=plan)
    assert saved_bytes(model, *inputs).total <= plan.planned.kept <= 0.05 * kept
    assert peak_bytes(model, *inputs) <= plan.planned.peak
    handle.remove()
    assert all("forward" not in vars(module) for module in model.modules())


@pytest.mark.slow
def test_a_bound_on_the_error() -> None:
    model, inputs = text(2)
    task = CapturedTask(model, call_of(inputs))
    loose = plan_of(task, 0.1, max_gradient_error=0.9, goal="error")
    bound = loose.errors.predicted * 0.7
    tight = plan_of(task, 0.1, max_gradient_error=bound, goal="error")
    assert not loose.recomputed
    assert tight.recomputed
    assert tight.errors.predicted <= bound
    with pytest.raises(KernelError, match=r"max_gradient_error must be at least .* for this budget"):
        plan_of(task, 0.03, max_gradient_error=1e-6, goal="error")


@pytest.mark.parametrize("bound", [-1.0, True, "0.1", float("inf"), float("nan")])
def test_what_is_no_bound(bound: object) -> None:
    model, inputs = text(1)
    with pytest.raises(KernelError, match='max_gradient_error must be "dtype" or a number of 0 or more'):
        make_plan(model, inputs, 0.2, max_gradient_error=bound, goal="error")  # type: ignore[arg-type]


class Shared(nn.Module):
    """Blocks that are in two lists."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList(Attending() for _ in range(2))
        self.second = nn.ModuleList(self.first)


def test_a_block_with_two_names_is_one() -> None:
    assert repeated_blocks(Shared()) == ["first.0", "first.1"]


@pytest.mark.slow
def test_blocks_that_change_what_they_are_given() -> None:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.ReLU(inplace=True), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)) for _ in range(4)]
    model, inputs = nn.Sequential(nn.Linear(64, 64), *blocks), (torch.randn(256, 64),)
    exact = gradient(model, inputs)
    plan = make_plan(model, inputs, 0.5, max_gradient_error=1e-6, goal="error")
    assert plan.recomputed
    compress(model, plan=plan)
    assert all(torch.allclose(a, b) for a, b in zip(gradient(model, inputs), exact, strict=True))


def test_what_blocks_are_given_by_keyword_is_coded_too() -> None:
    """It is twice as long as what a block gives, so it was kept whole where it counted."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.narrow = nn.Linear(128, 128), nn.Linear(128, 64)

        def forward(self, x: Tensor, *, beside: Tensor) -> Tensor:
            y: Tensor = x + self.narrow(nn.functional.gelu(self.wide(beside)))
            return y

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x, beside=torch.cat([x, x.sin()], -1))
            return x

    model, x = Net(), torch.randn(256, 64)
    whole = 4 * 256 * 128 * 4  # bytes of all that blocks are given by keyword
    step = CapturedTask(model, call_of(x)).step(BlockWays(repeated_blocks(model)))
    assert step.kept_with(2) < whole
