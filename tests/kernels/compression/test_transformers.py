"""transformers' models, trained with coded partitions."""

import pytest
import torch

from tests.kernels.compression.cuts import Step, allowed, full_width, same
from tests.kernels.compression.graphs import code_from, error, partitioner, stock
from tests.kernels.graph.small_transformers import build

pytestmark = pytest.mark.slow

BITS, RATE = 8, 0.002


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    code_from(64, monkeypatch)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo looks at it
# As tests/kernels/graph/test_models.py has more of them, and test_partitioner the parts of bert and vit.
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_each_architecture(family: str) -> None:
    """It trains; its gradients are stock's with codes of full width, and near them with few bits."""
    (model, inputs), cut = build(family), partitioner(bits=BITS)
    step = Step(model, cut)
    first = step.run(**inputs).loss
    first.backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight -= RATE * weight.grad if weight.grad is not None else 0
    assert step.run(**inputs).loss < first
    assert sum(graph.before for graph in cut.graphs) > 1.5 * sum(graph.after for graph in cut.graphs)

    exact = step.again(stock)
    with full_width():
        assert same(step.again(partitioner()), exact)
    off = {bits: error(step.again(partitioner(bits=bits))[1], exact[1]) for bits in (BITS, 4)}
    assert off[BITS] < allowed(cut.graphs, BITS)
    # Steps are a 17th as large, 15 / 255; a factor 2 allows for higher orders.
    assert off[BITS] < off[4] / (17 / 2)
