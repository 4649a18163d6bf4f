"""Graphs that PyTorch cuts in parts of their own, and sizes that depend on data."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo import config as dynamo_config
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.compiler import nested_compile_region
from torch.nn import functional as F

import actfit
from actfit.kernels import private
from tests.kernels.compression.graphs import compiled, error, gradients, partitioner

pytestmark = pytest.mark.usefixtures("small_and_seeded")

ERROR = 0.01  # of a gradient by 8 bits: see test_exactness


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    @nested_compile_region
    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(F.gelu(self.a(self.norm(x))))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # a compiler may warn
@inductor_config.patch(force_disable_caches=True)
def test_regions_that_are_compiled_once() -> None:
    """Each has the right gradient, which Inductor's writing into saved tensors took from the first of three."""
    model, x = nn.Sequential(Block(), Block(), Block()), torch.randn(256, 64)
    torch._dynamo.reset()
    run = torch.compile(model, options=actfit.options(bits=8))
    coded, exact = gradients(model, run, x), gradients(model, model, x)
    count = len(coded) // 3
    assert all(error(coded[at : at + count], exact[at : at + count]) < ERROR for at in range(0, len(coded), count))
    region, around = actfit.report(run).graphs
    assert {row.operation for row in region.crossings if row.form == "8 bits"} == {"aten.addmm"}
    assert "an input" not in {row.operation for row in region.crossings}  # weights are not coded
    of_regions = [row for row in around.crossings if "getitem" in row.operation]
    assert {row.form for row in of_regions} == {"whole"}  # codes are not coded again
    assert any("a graph of its own" in row.reason for row in of_regions)


class Own(CustomGraphPass):
    def __call__(self, graph: fx.Graph) -> None: ...

    def uuid(self) -> str:
        return "own"


def test_regions_without_our_pass_are_refused() -> None:
    """Else a pass of the user's own would replace it, and gradients would be wrong without a word."""
    torch._dynamo.reset()
    options = actfit.options(bits=8) | {"post_grad_custom_pre_pass": Own()}
    run = torch.compile(nn.Sequential(Block(), Block(), Block()), options=options)
    with pytest.raises(Exception, match="options must have post_grad_custom_pre_pass as "):
        run(torch.randn(256, 64))


# Nor does 2.9 by itself.
SOFTMAX = pytest.mark.skipif(private.release() < (2, 10), reason="2.9 compiles no softmax whose size depends on data")


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 256), nn.Linear(256, 64)


class Experts(Routed):
    def forward(self, x: Tensor) -> Tensor:
        own = (x[:, 0] > 0).nonzero().squeeze(1)
        return x.index_add(0, own, self.b(torch.tanh(self.a(x[own]))))


class Selected(Routed):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.gelu(self.a(x))[x[:, 0] > 0])


class Normed(Routed):
    def forward(self, x: Tensor) -> Tensor:
        h = F.layer_norm(self.a(x)[(x[:, 0] > 0).nonzero().squeeze(1)], (256,))
        return self.b(F.relu(h) * torch.sigmoid(h))


class Split(Routed):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v, rest = self.a(x)[(x[:, 0] > 0).nonzero().squeeze(1)].chunk(4, -1)
        return self.b(torch.cat([q * k.sigmoid(), v, torch.softmax(q, -1), rest], 1))


@pytest.mark.parametrize(
    ("make", "saved"),  # whether a tensor of such a size is saved
    [(Experts, True), (Selected, False), (Normed, True), pytest.param(Split, True, marks=SOFTMAX)],
)
@dynamo_config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
def test_sizes_that_depend_on_data(make: Callable[[], nn.Module], saved: bool) -> None:
    """Such tensors cross whole, with the reason; what has other sizes is coded."""
    model, x, cut = make(), torch.randn(512, 64), partitioner(bits=8)
    run = compiled(model, cut, fullgraph=True)
    assert error(gradients(model, run, x), gradients(model, model, x)) < ERROR
    reasons = {row.reason for graph in cut.graphs for row in graph.crossings}
    assert ("its size depends on data, and is not counted" in reasons) == saved
