"""Captured blocks that Inductor compiles: gradients, bytes, plans, and errors that are watched."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._inductor import config as inductor_config

from actfit import Plan, compress, gradient_error, make_plan, peak_bytes, saved_bytes
from actfit.kernels.compression.cut import Cut
from actfit.kernels.compression.forms import Groups
from actfit.kernels.compression.layout import GroupLayout
from actfit.kernels.errors import KernelError
from actfit.kernels.graph import watch
from actfit.kernels.graph.lifetimes import live_bytes
from actfit.kernels.graph.partition import Partitioner
from actfit.kernels.memory.compiled import growth
from actfit.kernels.methods import every_tensor
from benchmarks.compression.meter import measured
from tests.kernels.graph.nets import batch, gradients, net, steps

ROWS = 512
ROUNDING = 1e-5  # of float32, in sums of some thousand products: 2^-24 * sqrt(4096), and as much again to spare


@pytest.fixture(autouse=True)
def _usual_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partitioner, "smallest", every_tensor.SMALLEST)


def loss_of(model: nn.Module) -> Tensor:
    """Weighs all outputs differently."""
    y = model(batch(ROWS))
    return (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum()


def error(ours: nn.Module, stock: nn.Module) -> float:
    """||g' - g|| / ||g|| after a step of each."""
    steps((ours, stock), loss_of)
    a, b = (torch.cat([part.flatten() for part in gradients(model) if part is not None]) for model in (ours, stock))
    return float((a - b).norm() / b.norm())


@pytest.fixture(scope="module")
def plan() -> Plan:
    """In few bits; nothing is compiled to make it."""
    torch.manual_seed(0)
    return make_plan(net(), batch(ROWS), 0.2, goal="error", compiled=True)


def test_a_plan_of_compiled_blocks(plan: Plan) -> None:
    assert plan.compiled
    assert 0 < plan.planned.kept <= 0.2 * plan.stock.kept
    assert 0 < plan.errors.measured <= plan.uniform_error
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.slow
def test_a_planned_model_keeps_what_the_plan_says(plan: Plan, tmp_path: Path) -> None:
    """In compiled code: bytes, error and peak, also with a plan from a file, and for a copy."""
    stock, x = net(), batch(ROWS)
    ours = copy.deepcopy(stock)
    plan.save(tmp_path / "plan.json")
    handle = compress(ours, plan=tmp_path / "plan.json")
    assert ROUNDING < error(ours, stock) < 3 * plan.errors.measured  # what the safety net allows
    kept = saved_bytes(ours, x).total
    # A norm's 1/std of each row crosses where what it normalises has codes; the plan counts it for all.
    assert 0 <= plan.planned.kept - kept <= 4 * ROWS * 4
    assert abs(growth(lambda: ours(x), torch.device("cpu"))[1] - x.nbytes - kept) < 0.01 * kept  # and its output
    assert peak_bytes(ours, x) <= plan.planned.peak
    bits = {row.form for graph in handle.report.graphs for row in graph.crossings if row.site}
    assert bits - {"whole"} == {f"{site.bits} bits" for site in plan.sites if site.bits}
    copied = copy.deepcopy(ours)
    assert saved_bytes(copied, x).total == kept
    handle.remove()
    assert "forward" not in vars(ours[0])


@pytest.mark.slow
def test_exact_gradients_are_those_of_stock_but_for_rounding() -> None:
    """Twice over one graph, and without some results' gradients."""
    stock = net()
    ours = copy.deepcopy(stock)
    compress(ours, compiled=True)
    assert error(ours, stock) < ROUNDING
    assert saved_bytes(ours, batch(ROWS)).total < 0.7 * saved_bytes(stock, batch(ROWS)).total
    loss = loss_of(ours)
    weights = list(ours.parameters())
    first = torch.autograd.grad(loss, weights, retain_graph=True)
    again = torch.autograd.grad(loss, weights)
    assert all(map(torch.equal, first, again))
    with torch.no_grad():
        assert torch.equal(ours(batch(ROWS)), stock(batch(ROWS)))  # by stock


@pytest.mark.slow
def test_recomputed_blocks_keep_their_inputs_alone() -> None:
    stock, x = net(), batch(ROWS)
    ours = copy.deepcopy(stock)
    plan = make_plan(ours, x, 0.1, max_gradient_error=0, compiled=True)
    assert plan.recomputed
    compress(ours, plan=plan)
    assert error(ours, stock) < ROUNDING
    assert saved_bytes(ours, x).total == plan.planned.kept


@pytest.mark.slow
def test_errors_in_training_are_watched(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """All sites have turns, also of layers that share code; what is seen is what the plan measured, or it warns."""
    monkeypatch.setattr(watch, "EVERY", 1)
    ours = net()
    handle = compress(ours, plan=plan)
    steps((ours,), loss_of, 24)
    planned = handle.watch.planned
    assert handle.watch.seen.keys() == planned.keys()
    # Other samples than the plan's, and whole tensors in place of those of two samples.
    assert all(handle.watch.seen[site] < 2 * planned[site] for site in planned)
    handle.remove()
    promised = [replace(site, decoded=(site.decoded or 0) / 4) for site in plan.sites]  # as of other weights
    compress(ours, plan=replace(plan, sites=tuple(promised)))
    with pytest.warns(UserWarning, match="decoded tensors must err by at most 2 times .* plan again"):
        steps((ours,), loss_of, 24)


def test_what_is_watched_takes_no_more_than_a_step_took(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = fx.symbolic_trace(lambda x: torch.sum(torch.add(torch.exp(x), torch.sin(x)))).graph
    for node in graph.nodes:
        node.meta["val"] = torch.empty(1 if "sum" in node.name else 1000)
    assert max(live_bytes(graph, inputs=False)) == 3 * 4000  # two terms, and what is made of them
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 700)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 1000)
    gpu = torch.device("cuda")
    assert [watch.has_room(gpu, more) for more in (300, 301)] == [True, False]
    assert watch.has_room(torch.device("cpu"), 1 << 40)


def test_what_may_do_more_than_compute_does_not_run_beside() -> None:
    """As a collective, or an operation of somebody else."""
    joint = fx.Graph()
    x = joint.placeholder("x")
    own = joint.call_function(torch.ops.aten.exp.default, (x,))
    other = joint.call_function(torch.ops.actfit.decode_groups.default, (own,))
    cut = Cut(0, {}, {node: Groups(8, GroupLayout((0,), 64)) for node in (own, other)}, {own: "own", other: "other"})
    graph, watched = fx.GraphModule({}, joint), watch.Watch({})
    watched.of_compiled(graph, cut, "nearest")
    assert [part.site for part in graph.meta[watch.BESIDE]] == ["own"]


@pytest.mark.slow
def test_dropout() -> None:
    """Compiled code draws other numbers, unless it is told to draw as eager mode does."""
    ours = net(dropout=0.1)
    compress(ours, bits=8, compiled=True)
    with pytest.raises(KernelError, match="loss must draw no random numbers"):
        gradient_error(ours, loss_of)
    with inductor_config.patch(fallback_random=True):
        ours = net(dropout=0.1)
        compress(ours, bits=8, compiled=True)
        assert gradient_error(ours, loss_of).error < 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compiled": 1.5}, r"compiled must be True, False or None, got 1\.5"),
        ({"policy": "invact", "compiled": True}, "policy must be None with compiled=True, got 'invact'"),
        ({"compiled": False}, "compiled must be that of the plan, True, got False: compiled blocks save other tensors"),
    ],
)
def test_misuse(options: dict[str, Any], message: str, request: pytest.FixtureRequest) -> None:
    given = (
        {} if "compiled" in options and options["compiled"] is not False else {"plan": request.getfixturevalue("plan")}
    )
    with pytest.raises(KernelError, match=message):
        compress(net(), **given, **options)


def test_a_plan_of_other_graphs_is_refused() -> None:
    made = make_plan(net(), batch(ROWS), 0.3, goal="error")
    with pytest.raises(KernelError, match="compiled must be that of the plan, False, got True"):
        compress(net(), plan=made, compiled=True)


def wide(function: Callable[[Tensor], Tensor]) -> tuple[nn.Module, Tensor]:
    """A function between two layers, 16 times as wide as they."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(16, 256, bias=False), nn.Linear(256, 16, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.down(function(self.up(x)))
            return made

    torch.manual_seed(0)
    return Wide(), torch.randn(1024, 16)


def chain(x: Tensor) -> Tensor:
    """Inductor computes it in one loop, and its derivative in one, in place of the gradient that comes."""
    return torch.tanh(x * 2 + 1) * 3 - 1


@pytest.mark.slow
def test_the_peak_of_compiled_code_is_foreseen() -> None:
    """Not that of the operations one after the other; by what the allocator gives out."""
    model, x = wide(chain)
    compress(model, compiled=True)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    model(x).sum().backward()  # compiles
    most = measured(lambda: model(x).sum(), torch.device("cpu")).peak
    foreseen = peak_bytes(model, x)
    assert most <= foreseen <= 1.1 * most
    assert foreseen < 0.8 * peak_bytes(wide(chain)[0], x)


@pytest.mark.slow
def test_plans_mix_recomputed_blocks_and_codes() -> None:
    """Blocks that run again have no codes; no size changes, and nothing warns."""
    stock, x = net(layers=3), batch(ROWS)
    plan = make_plan(stock, x, 0.1, max_gradient_error=0.02, goal="error", samples=128, compiled=True)
    assert plan.recomputed
    assert any(site.bits for site in plan.sites)
    assert not any(site.name.startswith(f"{plan.recomputed[0]}.") for site in plan.sites)
    ours = copy.deepcopy(stock)
    compress(ours, plan=plan)
    assert 0 < error(ours, stock) < 3 * plan.errors.measured
    assert 0 <= plan.planned.kept - saved_bytes(ours, x).total <= 6 * ROWS * 4  # as above


def test_a_budget_that_stock_fits_has_exact_blocks_compiled() -> None:
    plan = make_plan(net(), batch(ROWS), "1GiB", goal="error", compiled=True)
    assert plan.needed
    assert not plan.recomputed
    assert not any(site.bits for site in plan.sites)
    assert plan.planned.kept < 0.7 * plan.stock.kept
