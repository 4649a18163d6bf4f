"""Coded partitions as users have them: through Inductor, with its caches."""

from pathlib import Path

import pytest
import torch
import torch._inductor.config as inductor_config
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import actfit
from benchmarks.compression.meter import measured
from tests.kernels.compression import models
from tests.kernels.compression.graphs import code_from, compiled, error, gradients, partitioner, stock

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch's own modules, while they compile
def test_inductor_gives_what_its_graphs_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of graphs that run operation by operation, up to the rounding of compiled kernels.

    Inductor's cache gives the same gradient, but no report.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model, inputs = models.build("mlp")
    exact = gradients(model, compiled(model, stock), *inputs)
    expected = error(gradients(model, compiled(model, partitioner()), *inputs), exact)
    outcomes = []
    for _ in range(2):
        torch._dynamo.reset()
        with inductor_config.patch(fx_graph_cache=True):
            run = torch.compile(model, options=actfit.options())
            outcomes.append((gradients(model, run, *inputs), actfit.report(run)))
    (first, report), (again, _) = outcomes
    # Rounding moves few codes by a step: the sizes of the errors agree to a few percent.
    assert error(first, exact) == pytest.approx(expected, rel=0.1)
    assert all(map(torch.equal, first, again))
    (graph,) = report.graphs
    assert graph.after < graph.before / 4


class Checkpointed(nn.Module):
    """Attention in a checkpoint, with a dynamic length that operations use only through a length derived from it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = models.Attention(causal=True)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, x.cos()])
        y: Tensor = checkpoint(self.attention, x.cumsum(-1) / 8, use_reentrant=False)
        return self.attention(y).relu().sum(0)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch's own modules, while they compile
def test_checkpoints_and_sizes_that_inductor_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    code_from(64, monkeypatch)
    torch.manual_seed(0)
    model, x = Checkpointed(), torch.randn(4, 64, 64)
    exact = gradients(model, model, x)
    torch._dynamo.reset()
    torch._dynamo.mark_dynamic(x, 0)
    run = torch.compile(model, options=actfit.options(bits=8))
    with inductor_config.patch(force_disable_caches=True):  # for there to be a report
        assert 0 < error(gradients(model, run, x), exact) < 0.05
    (graph,) = actfit.report(run).graphs
    assert "computed again" in [row.form for row in graph.crossings]


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.GELU(), nn.Dropout(0.5))
        self.head = nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.layers(x))
        return y


@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch's own modules, while they compile
@pytest.mark.parametrize("in_place", [False, True])
def test_errors_of_gradients(in_place: bool) -> None:
    """With the random numbers of eager mode, dropout's zeros are the same; with others, the error would be above 1."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x = Dropping(), torch.randn(64, 64)
    options = {**actfit.options(bits=8), "fallback_random": True}
    if in_place:
        model.compile(options=options)
    run = model if in_place else torch.compile(model, options=options)
    measured = actfit.gradient_error(run, lambda parameter: parameter(x).square().mean())
    assert 0 < measured.error < 0.02
    assert [parameter.name for parameter in measured.parameters if "_orig_mod" in parameter.name] == []
    assert len(measured.parameters) == len(list(model.parameters()))


@pytest.mark.parametrize(
    ("function", "bits", "dtype"),
    [(nn.GELU, 4, torch.float32), (models.WrittenOut, 7, torch.bfloat16)],
    ids=["4", "written-out-7-bfloat16"],
)
def test_decoded_tensors_are_not_held(function: type[nn.Module], bits: int, dtype: torch.dtype) -> None:
    """At its peak, backward holds the codes, one decoded tensor, and what is computed of it or its gradient.

    Beside these, gradients of the input and of the output are there, an eighth each.
    """
    layers = [layer for _ in range(2) for layer in (nn.Linear(128, 1024), function(), nn.Linear(1024, 128))]
    model = nn.Sequential(*layers).to(dtype)
    x = torch.randn(4096, 128, dtype=dtype, requires_grad=True)
    run = torch.compile(model, options=actfit.options(bits=bits))
    for _ in range(2):
        used = measured(lambda: run(x).square().mean(), CPU)
    hidden = 4096 * 1024 * dtype.itemsize
    assert 2 * hidden <= used.peak - used.kept < 2.5 * hidden


@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch's own modules, while they compile
@pytest.mark.parametrize("bits", [8, 3])
def test_codes_by_a_wrapper_in_c(bits: int) -> None:
    """Those of 8 bits are Inductor's own loops; those of 3 bits are calls of our kernels."""
    torch.manual_seed(0)
    model, x, found = Dropping().eval(), torch.randn(256, 64), []
    for more in ({}, {"cpp_wrapper": True}):
        torch._dynamo.reset()
        run = torch.compile(model, options={**actfit.options(bits=bits), **more})
        found.append(gradients(model, run, x))
    assert all(map(torch.equal, *found))
