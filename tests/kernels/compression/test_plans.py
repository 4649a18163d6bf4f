"""Plans for compiled models: crossing tensors, the gradient's error by codes, and the planned model."""

import random
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config as inductor_config
from torch._subclasses import FakeTensor
from torch.nn import functional as F

from kernels import KernelError, compression, convert, saved_bytes
from kernels.compression import private
from kernels.compression.partitioner import CodedPartitioner
from kernels.compression.parts import PlannedParts
from kernels.compression.planning import CompiledGradients, CompiledTask, run
from kernels.memory.isolated import on_copies
from kernels.methods.every_tensor import EveryTensor
from kernels.planning import Plan, front, make_plan
from kernels.planning.batches import call_of
from kernels.planning.sensitivity import Trials
from tests.kernels.compression.models import Attention, Llama

ROUNDING = 1e-5  # of float32, in sums of some thousand products: 2^-24 * sqrt(4096), and as much again to spare


def stack(kind: Callable[[], nn.Module] = Llama, layers: int = 2) -> tuple[nn.Module, Tensor]:
    """Layers, and a batch of tensors that are large enough for codes."""
    torch.manual_seed(0)
    return nn.Sequential(*[kind() for _ in range(layers)]), torch.randn(8, 32, 64)


def gradient(model: nn.Module, output: Tensor) -> list[Tensor]:
    """The gradient of a loss that weighs all outputs differently."""
    weights = torch.linspace(-1, 1, output.numel()).view(output.shape)
    return list(torch.autograd.grad((output * weights).sum(), list(model.parameters())))


def off(gradients: list[Tensor], others: list[Tensor]) -> float:
    """||g' - g|| / ||g||."""
    apart = sum(float((a - b).double().square().sum()) for a, b in zip(gradients, others, strict=True))
    return float((apart / sum(float(b.double().square().sum()) for b in others)) ** 0.5)


def partitioner(plan: Plan | Path) -> CodedPartitioner:
    made = compression.options(plan=plan)["custom_partitioner_fn"]
    assert isinstance(made, CodedPartitioner)
    return made


def saved(model: nn.Module, plan: Plan, x: Tensor) -> tuple[CodedPartitioner, int]:
    """The partitioner of the compiled model, and the bytes that autograd's graph holds."""
    cut = partitioner(plan)
    torch.compiler.reset()
    return cut, saved_bytes(torch.compile(model, backend=private.interpreted(cut), dynamic=False), x).total


def test_a_share_of_what_is_kept() -> None:
    """The compiled model saves what the plan says, to the byte."""
    model, x = stack()
    plan = make_plan(model, x, 0.12, compiled=True)
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


def test_what_is_tried_is_what_comes_of_it() -> None:
    """The gradient with codes on trial is that with the codes themselves."""
    model, x = stack()
    plan = make_plan(model, x, 0.12, compiled=True)
    exact = gradient(model, model(x))
    coded = gradient(model, run(model, partitioner(plan), (x,), {}))
    trials = Trials()
    weights = torch.linspace(-1, 1, x.numel()).view(x.shape)
    tried = CompiledGradients(model, (x,), {}, lambda y: (y * weights).sum(), trials)
    assert tried.error(plan.method.at_site) ** 0.5 == pytest.approx(off(coded, exact), abs=ROUNDING)
    assert tried.error({}) == 0
    assert 10 * ROUNDING < off(coded, exact) < 0.1


def test_whole_tensors_are_the_exact_gradient() -> None:
    model, x = stack()
    exact = gradient(model, model(x))
    method = EveryTensor(8)
    whole = type("Whole", (EveryTensor,), {"at": lambda self, site: None})(8)
    assert off(gradient(model, run(model, CodedPartitioner(whole), (x,), {})), exact) < ROUNDING
    assert off(gradient(model, run(model, CodedPartitioner(method), (x,), {})), exact) > 10 * ROUNDING


@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch's own modules, while they compile
@pytest.mark.slow
def test_a_planned_model_under_inductor(tmp_path: Path) -> None:
    """Compiled with a plan from a file, the model saves and computes what was planned."""
    model, x = stack(layers=1)
    plan = make_plan(model, x, 0.12, compiled=True)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    with inductor_config.patch(force_disable_caches=True):
        compiled = torch.compile(model, options=compression.options(plan=tmp_path / "plan.json"))
        compiled_gradient = gradient(model, compiled(x))
    assert [graph.after for graph in compression.report(compiled).graphs] == [plan.planned.kept]
    same = gradient(model, run(model, partitioner(plan), (x,), {}))
    # Other rounding in compiled code may move a code by a step: a few in ten thousand, less than one in a hundred.
    assert off(compiled_gradient, same) < 0.1 * plan.errors.measured


@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch's own modules, while they compile
@pytest.mark.slow
def test_dropout_under_inductor() -> None:
    """With Inductor's own operations for random numbers, all sites are still planned."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64), nn.Dropout(0.1))
    x = torch.randn(256, 64)
    plan = make_plan(model, x, 0.15, compiled=True)
    with inductor_config.patch(force_disable_caches=True):
        compiled = torch.compile(model, options=compression.options(plan=plan))
        compiled(x).sum().backward()
    (graph,) = compression.report(compiled).graphs
    assert {row.site for row in graph.crossings if row.site} == {site.name for site in plan.sites}
    assert graph.after == plan.planned.kept


def test_of_a_stand_in_and_a_loss() -> None:
    """A model on the meta device, with the errors of its stand-in."""
    model, x = stack()
    other, _ = stack()
    labels = torch.randint(64, (8, 32))

    def loss(y: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(y.flatten(0, 1), labels.flatten())

    with torch.device("meta"):
        meta = nn.Sequential(Llama(), Llama())
    plan = make_plan(meta, x, 0.12, loss=loss, targets=labels, stand_in=(other, x, labels), compiled=True)
    own = make_plan(model, x, 0.12, loss=loss, targets=labels, compiled=True)
    assert [(site.name, site.whole) for site in plan.sites] == [(site.name, site.whole) for site in own.sites]
    assert plan.planned.kept <= 0.12 * plan.stock.kept
    assert plan.measured_on


def test_dropout_and_stochastic_rounding() -> None:
    """All backward passes use the same dropout mask; another mask would count as an error."""
    model, x = stack(lambda: Attention(written=True))
    with on_copies(model):
        tried = CompiledGradients(model, (x,), {}, None, Trials("stochastic"))
        assert tried.error({}) == 0
        everywhere = dict.fromkeys(tried.sites, 4)
        assert 0 < tried.error(everywhere) != tried.error(everywhere)
    plan = make_plan(model, x, 0.15, rounding="stochastic", compiled=True)
    assert partitioner(plan).method.rounding == "stochastic"


# Dynamo looks at the gradient of such an input.
an_activation_as_an_input = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


class Broken(nn.Module):
    """Two graphs, of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Llama()

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        torch._dynamo.graph_break()
        result: Tensor = self.layer(y)
        return result


@an_activation_as_an_input
def test_a_layer_in_two_graphs_has_its_sites_once() -> None:
    torch.manual_seed(0)
    model, x = Broken(), torch.randn(8, 32, 64)
    task = CompiledTask(model, call_of(x))
    step = task.step(())
    names = [site.name for site in step.sites]
    assert len(set(names)) == len(names)
    plan = make_plan(model, x, 0.12, compiled=True)
    cut, kept = saved(model, plan, x)
    assert len(cut.graphs) > 1
    assert sum(graph.after for graph in cut.graphs) == kept == plan.planned.kept


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
def test_graphs_that_run_again_and_what_is_saved_outside_of_graphs() -> None:
    """All of it counts: the total is what autograd's own graph holds."""
    torch.manual_seed(0)
    model, x = Loop(), torch.randn(8, 32, 64)
    plan = make_plan(model, x, 0.2, compiled=True)
    cut, kept = saved(model, plan, x)
    assert sum(graph.after for graph in cut.graphs) < kept / 2
    assert kept == plan.planned.kept <= 0.2 * plan.stock.kept


def test_nothing_to_compile() -> None:
    model, x = stack(layers=1)
    model.forward = torch._dynamo.disable(model.forward)  # type: ignore[method-assign]
    with pytest.raises(KernelError, match=r"model must be one that torch\.compile makes graphs of for backward"):
        make_plan(model, x, 0.12, compiled=True)


class Cached(nn.Module):
    """Its table is made at the first call, outside of graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = Llama(), cache(partial(torch.linspace, 0, 1))
        self.not_compiled = torch._dynamo.disable(lambda: self.table(64))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x * self.not_compiled())
        return result


def test_no_fake_tensors_are_left() -> None:
    torch.manual_seed(0)
    model = Cached()
    assert make_plan(model, torch.randn(8, 32, 64), 0.12, compiled=True).sites
    assert not isinstance(model.table(64), FakeTensor)


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
    step = task.step(())
    known = task.errors((), step)
    assert set(known) == {site.name for site in step.sites}
    assert all(errors[2] > 0 for errors in known.values())
    task._miss({"a: mm"}, 10)
    with pytest.raises(KernelError, match="samples must be cut as the whole batch, got none of 2 of its 10 saved"):
        task._miss({"a: mm", "b: mm"}, 10)


def test_a_plan_leaves_no_trace() -> None:
    """Model, gradients and random states are unchanged; the next compilation does not see the samples' sizes."""
    model, x = stack(lambda: Attention(written=True), layers=1)
    model.append(nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(64)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate()
    make_plan(model, x, 0.2, compiled=True)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    cut = CodedPartitioner(EveryTensor(4))
    torch.compile(model, backend=private.interpreted(cut))(x)
    make = CodedPartitioner(EveryTensor(4))
    run(model, make, (x,), {})  # with sizes that do not change
    assert cut.graphs == make.graphs


def test_a_front() -> None:
    model, x = stack(layers=1)
    plan = make_plan(model, x, 0.12, compiled=True)
    plans = front(model, x, plan=plan, compiled=True, count=3)
    assert [point.name for point in plans.named] == ["stock", "8 bits", "4 bits", "2 bits", "plan"]
    errors = [point.error for point in plans.points]
    assert errors == sorted(errors, reverse=True)
    assert "| – |" in str(plans)
    with pytest.raises(KernelError, match="by must be 'kept' for a compiled model, whose peak is not known"):
        front(model, x, by="peak", compiled=True)


def wrong_budget(model: nn.Module, x: Tensor) -> Any:
    return make_plan(model, x, "1GiB", compiled=True)


def too_small(model: nn.Module, x: Tensor) -> Any:
    return make_plan(model, x, 0.01, compiled=True)


def compiled_already(model: nn.Module, x: Tensor) -> Any:
    return make_plan(torch.compile(model), x, 0.2, compiled=True)


def converted_compiled(model: nn.Module, x: Tensor) -> Any:
    return convert(torch.compile(model), inputs=x, budget=0.2)


def for_eager_mode(model: nn.Module, x: Tensor) -> Any:
    return convert(model, plan=make_plan(model, x, 0.12, compiled=True))


def of_eager_mode(model: nn.Module, x: Tensor) -> Any:
    return compression.options(plan=make_plan(model, x, 0.2))


def bits_beside(model: nn.Module, x: Tensor) -> Any:
    return compression.options(4, plan=make_plan(model, x, 0.12, compiled=True))


def bound(model: nn.Module, x: Tensor) -> Any:
    return make_plan(model, x, 0.12, max_gradient_error=1e-6, compiled=True)


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (wrong_budget, r"budget must be a share of what the model keeps for a compiled model, as 0.2, .*, got '1GiB'"),
        (too_small, r"budget must be at least .* kept for backward, got .*: with 2 bits everywhere codes take"),
        (
            compiled_already,
            "model must not be compiled yet for a plan, got what torch.compile gave, whose graphs save what they do",
        ),
        (
            converted_compiled,
            "model must not be compiled yet for a plan, got what torch.compile gave, whose graphs save what they do",
        ),
        (for_eager_mode, "plan must be for eager mode, got one of a compiled model, .*; give it to torch.compile"),
        (of_eager_mode, "plan must be of a compiled model, got one for eager mode, .*; make one by make_plan"),
        (bits_beside, "bits and rounding must not be given beside plan, which says both"),
        (bound, "max_gradient_error must be at least .* for this budget, got 1e-06"),
    ],
)
def test_misuse(misuse: Callable[[nn.Module, Tensor], Any], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        misuse(*stack(layers=1))


def test_the_plan_of_another_model_is_refused() -> None:
    model, x = stack(layers=1)
    cut = partitioner(make_plan(model, x, 0.12, compiled=True))
    other = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    with pytest.raises(Exception, match=r"plan must be of this model, got one without '.*: aten.addmm'; plan anew"):
        run(other, cut, (x,), {})


@an_activation_as_an_input
def test_layers_that_are_compiled_by_themselves() -> None:
    """They share compiled code, and get the most bits of any of them."""
    model, x = stack(layers=3)
    plan = make_plan(model, x, 0.1, compiled=True)
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
