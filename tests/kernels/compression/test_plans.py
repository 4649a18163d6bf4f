"""Plans for compiled models: what the planned model saves, and its sites, also in parts."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config as inductor_config

import actfit
from actfit import Plan, make_plan, saved_bytes
from actfit.kernels.compression import private
from actfit.kernels.compression.partitioner import CodedPartitioner
from actfit.kernels.compression.parts import PlannedParts
from actfit.kernels.compression.planning import run
from actfit.kernels.methods.every_tensor import EveryTensor
from tests.kernels.compression.graphs import error
from tests.kernels.compression.models import Attention, Llama
from tests.kernels.compression.plans import gradient, partitioner, planned, saved, stack


def test_a_share_of_what_is_kept() -> None:
    """The compiled model saves what the plan says, to the byte."""
    model, x = stack(layers=1)
    plan = planned()
    assert plan.stock.kept == saved_bytes(model, x).total
    assert plan.planned.kept <= 0.12 * plan.stock.kept
    assert plan.planned.peak is None
    assert plan.errors.measured <= plan.uniform_error
    cut, kept = saved(model, plan, x)
    assert [graph.after for graph in cut.graphs] == [kept] == [plan.planned.kept]
    bits = {row.site: None if row.form == "whole" else int(row.form[0]) for row in cut.graphs[0].crossings if row.site}
    assert bits == {site.name: site.bits for site in plan.sites}
    assert len({width for width in bits.values() if width}) > 1
    assert "peak" not in str(plan)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch's own modules, while they compile
@pytest.mark.slow
def test_a_planned_model_under_inductor(tmp_path: Path) -> None:
    """Compiled with a plan from a file, the model saves and computes what was planned."""
    model, x = stack(layers=1)
    plan = planned()
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    with inductor_config.patch(force_disable_caches=True):
        compiled = torch.compile(model, options=actfit.options(plan=tmp_path / "plan.json"))
        compiled_gradient = gradient(model, compiled(x))
    assert [graph.after for graph in actfit.report(compiled).graphs] == [plan.planned.kept]
    same = gradient(model, run(model, partitioner(plan), (x,), {}))
    # Other rounding in compiled code may move a code by a step: a few in ten thousand, less than one in a hundred.
    assert error(compiled_gradient, same) < 0.1 * plan.errors.measured


@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch's own modules, while they compile
@pytest.mark.slow
def test_dropout_under_inductor() -> None:
    """With Inductor's own operations for random numbers, all sites are still planned."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64), nn.Dropout(0.1))
    x = torch.randn(256, 64)
    plan = make_plan(model, x, 0.15, compiled=True, goal="error")
    with inductor_config.patch(force_disable_caches=True):
        compiled = torch.compile(model, options=actfit.options(plan=plan))
        compiled(x).sum().backward()
    (graph,) = actfit.report(compiled).graphs
    assert {row.site for row in graph.crossings if row.site} == {site.name for site in plan.sites}
    assert graph.after == plan.planned.kept


# Dynamo looks at the gradient of such an input.
an_activation_as_an_input = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


class Loop(nn.Module):
    """A graph that runs once for each of five like layers; one layer is not compiled."""

    def __init__(self, compiled: bool = True) -> None:
        super().__init__()
        self.layers, self.last = nn.ModuleList(Llama() for _ in range(5)), nn.Linear(64, 64)
        self.apart = torch._dynamo.disable(nn.Sequential(nn.Linear(64, 64), nn.Tanh()))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            torch._dynamo.graph_break()
        result: Tensor = self.last(self.apart(x))
        return result


@an_activation_as_an_input
@pytest.mark.slow
def test_graphs_that_run_again_and_what_is_saved_outside_of_graphs() -> None:
    """All of it counts: the total is what autograd's own graph holds."""
    torch.manual_seed(0)
    model, x = Loop(), torch.randn(8, 32, 64)
    plan = make_plan(model, x, 0.2, compiled=True, goal="error")
    cut, kept = saved(model, plan, x)
    assert sum(graph.after for graph in cut.graphs) < kept / 2
    assert kept == plan.planned.kept <= 0.2 * plan.stock.kept


@pytest.mark.slow
def test_a_plan_leaves_no_trace() -> None:
    """Model, gradients and random states are unchanged; the next compilation does not see the samples' sizes."""
    model, x = stack(lambda: Attention(written=True), layers=1)
    model.append(nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(64)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate()
    make_plan(model, x, 0.2, compiled=True, goal="error")
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    cut = CodedPartitioner(EveryTensor(4))
    torch.compile(model, backend=private.interpreted(cut))(x)
    make = CodedPartitioner(EveryTensor(4))
    run(model, make, (x,), {})  # with sizes that do not change
    assert cut.graphs == make.graphs


@an_activation_as_an_input
@pytest.mark.slow
def test_layers_that_are_compiled_by_themselves() -> None:
    """They share compiled code, and get the most bits of any of them."""
    model, x = stack(layers=3)
    plan = make_plan(model, x, 0.1, compiled=True, goal="error")
    cut = partitioner(plan)
    torch.compiler.reset()
    for layer in model:
        layer.compile(backend=private.interpreted(cut), dynamic=False)
    model(x).square().mean().backward()
    rows = {row.site: row.form for graph in cut.graphs for row in graph.crossings if row.site}
    of_gates = [site.bits for site in plan.sites if site.name.endswith(".gate: aten.addmm")]
    assert len(of_gates) == 3
    assert rows["gate: aten.addmm"] == f"{max(of_gates)} bits"


@pytest.mark.parametrize(
    ("site", "bits"),
    [
        ("layers.0.gate: aten.mm", 3),
        ("gate: aten.mm", 5),
        ("layers.1.gate: aten.mm", 5),
        ("rate: aten.mm", 8),  # the end of no module's name
        (": aten.mm 2", None),  # one of them stays whole
        ("gate: aten.mm 2", None),
        ("up: aten.mul", 8),
    ],
)
def test_names_of_parts(site: str, bits: int | None) -> None:
    at = {"layers.0.gate: aten.mm": 3, "layers.1.gate: aten.mm": 5, "layers.0.gate: aten.mm 2": None}
    method = PlannedParts(8, "nearest", {**at, "crate: aten.mm": 2}).at(site)
    assert (None if method is None else method.bits) == bits
