"""Coded partitions as users have them: through Inductor, with its caches."""

from pathlib import Path

import pytest
import torch
import torch._inductor.config as inductor_config

from kernels import compression
from tests.kernels.compression import models
from tests.kernels.compression.graphs import compiled, error, gradients, partitioner, stock

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch's own modules, while they compile
def test_inductor_gives_what_its_graphs_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of graphs that run operation by operation, but for the rounding of kernels that compute otherwise;

    and the same gradient again from Inductor's cache, whose graphs have no report.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model, inputs = models.build("mlp")
    exact = gradients(model, compiled(model, stock), *inputs)
    expected = error(gradients(model, compiled(model, partitioner()), *inputs), exact)
    found = []
    for _ in range(2):
        torch._dynamo.reset()
        with inductor_config.patch(fx_graph_cache=True):
            run = torch.compile(model, options=compression.options())
            found.append((gradients(model, run, *inputs), compression.report(run)))
    (first, report), (again, _) = found
    # A value whose code rounding moves by a step is one of many: the errors' sizes agree to a few percent.
    assert error(first, exact) == pytest.approx(expected, rel=0.1)
    assert all(map(torch.equal, first, again))
    (graph,) = report.graphs
    assert graph.after < graph.before / 4
