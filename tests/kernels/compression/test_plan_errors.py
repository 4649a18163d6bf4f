"""The gradient's error by plans for compiled models."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actfit import KernelError, front, make_plan
from actfit.kernels.compression.planning import CompiledGradients, CompiledTask, run
from actfit.kernels.memory.isolated import on_copies
from actfit.kernels.planning.batches import call_of
from actfit.kernels.planning.sensitivity import Trials
from tests.kernels.compression.graphs import error
from tests.kernels.compression.models import Attention, Llama
from tests.kernels.compression.plans import gradient, partitioner, planned, stack

pytestmark = pytest.mark.slow

ROUNDING = 1e-5  # of float32, in sums of some thousand products: 2^-24 * sqrt(4096), and as much again to spare


def test_what_is_tried_is_what_comes_of_it() -> None:
    """The gradient with codes on trial is that with the codes themselves."""
    model, x = stack(layers=1)
    plan = planned()
    exact = gradient(model, model(x))
    coded = gradient(model, run(model, partitioner(plan), (x,), {}))
    trials = Trials()
    weights = torch.linspace(-1, 1, x.numel()).view(x.shape)
    tried = CompiledGradients(model, (x,), {}, lambda y: (y * weights).sum(), trials)
    assert tried.error(plan.method.at_site) ** 0.5 == pytest.approx(error(coded, exact), abs=ROUNDING)
    assert tried.error({}) == 0
    assert 10 * ROUNDING < error(coded, exact) < 0.1


def test_of_a_stand_in_and_a_loss() -> None:
    """A model on the meta device, with the errors of its stand-in."""
    model, x = stack(layers=1)
    other, _ = stack(layers=1)
    labels = torch.randint(64, (8, 32))

    def loss(y: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(y.flatten(0, 1), labels.flatten())

    with torch.device("meta"):
        meta = nn.Sequential(Llama())
    plan = make_plan(meta, x, 0.12, loss=loss, targets=labels, stand_in=(other, x, labels), compiled=True, goal="error")
    own = make_plan(model, x, 0.12, loss=loss, targets=labels, compiled=True, goal="error")
    assert [(site.name, site.whole) for site in plan.sites] == [(site.name, site.whole) for site in own.sites]
    assert plan.planned.kept <= 0.12 * plan.stock.kept
    assert plan.measured_on


def test_dropout_and_stochastic_rounding() -> None:
    """All backward passes use the same dropout mask; another mask would count as an error."""
    model, x = stack(lambda: Attention(written=True), layers=1)
    with on_copies(model):
        tried = CompiledGradients(model, (x,), {}, None, Trials("stochastic"))
        assert tried.error({}) == 0
        everywhere = dict.fromkeys(tried.sites, 4)
        assert 0 < tried.error(everywhere) != tried.error(everywhere)
    plan = make_plan(model, x, 0.15, rounding="stochastic", compiled=True, goal="error")
    assert partitioner(plan).method.rounding == "stochastic"


class Positions(nn.Module):
    """A table shared by all samples: whether it crosses depends on the number of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layers = nn.Embedding(32, 64), nn.Sequential(Llama(), Llama())

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x * torch.sigmoid(self.table(torch.arange(32))))
        return result


def test_sites_that_samples_do_not_have_are_guessed() -> None:
    torch.manual_seed(0)
    model, x = Positions(), torch.randn(16, 32, 64)
    task = CompiledTask(model, call_of(x))
    step = task.step()
    known = task.errors((), step)
    assert set(known) == {site.name for site in step.sites}
    assert all(errors[2] > 0 for errors in known.values())
    assert task._may_miss({"a: mm"}, 10, 0.25)
    assert not task._may_miss({"a: mm", "b: mm"}, 10, 0.25)
    with pytest.raises(KernelError, match="model must be cut alike in each step, got none of 2 of its 10 saved"):
        task._may_miss({"a: mm", "b: mm"}, 10, 1.0)


def test_a_front() -> None:
    model, x = stack(layers=1)
    plans = front(model, x, plan=planned(), compiled=True, count=3)
    assert [point.name for point in plans.named] == ["stock", "8 bits", "4 bits", "2 bits", "plan"]
    errors = [point.error for point in plans.points]
    assert errors == sorted(errors, reverse=True)
    assert "| – |" in str(plans)
    with pytest.raises(KernelError, match="by must be 'kept' for a compiled model, whose peak is not known"):
        front(model, x, by="peak", compiled=True)
