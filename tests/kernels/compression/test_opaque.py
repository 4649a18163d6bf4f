"""Codes by our own kernels, which models compiled for a GPU use; here their reference runs, on the CPU."""

from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from torch import Tensor, fx, nn

from kernels.compression import opaque, private
from kernels.compression.layout import GroupLayout, layout_of
from kernels.compression.nodes import is_product
from tests.kernels.compression import graphs, models


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "vector", lambda _: 1)
    monkeypatch.setattr(opaque, "DEVICE", "cpu")
    torch._dynamo.reset()


class Cuts:
    """A partitioner that keeps the graphs that it makes."""

    def __init__(self, **settings: Any) -> None:
        self.cut, self.graphs = graphs.partitioner(**settings), list[tuple[fx.GraphModule, fx.GraphModule]]()

    def __call__(self, joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        self.graphs.append(self.cut(joint, inputs, **options))
        return self.graphs[-1]

    def calls(self, at: int) -> list[fx.Node]:
        """The decoding operations of a backward graph."""
        return [node for node in self.graphs[at][1].graph.nodes if node.target is opaque.DECODE]


def gradients_of(model: nn.Module, cut: Any, *inputs: Tensor) -> list[Tensor]:
    return graphs.gradients(model, graphs.compiled(model, cut), *inputs)


@pytest.mark.parametrize("bits", [8, 5, 4])
@pytest.mark.parametrize("name", ["Llama", "mlp"])
def test_codes_are_those_of_the_traced_ones(name: str, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, as operations run one by one; 2 and 3 bits have more ways to clip."""
    torch.manual_seed(0)
    model, x = {"Llama": models.Llama(), "mlp": models.mlp(64)}[name], torch.randn(2, 64, 64)
    cut = Cuts(bits=bits)
    got = gradients_of(model, cut, x)
    assert cut.calls(0)
    monkeypatch.setattr(opaque, "DEVICE", "cuda")
    traced = Cuts(bits=bits)
    for gradient, expected in zip(got, gradients_of(model, traced, x), strict=True):
        assert torch.equal(gradient, expected)
    assert not traced.calls(0)


def test_decoding_waits_for_the_product_before() -> None:
    """Else a tensor that the product before does not need would be decoded while it runs."""
    cut = Cuts(bits=4)
    gradients_of(models.Llama(), cut, torch.randn(2, 64, 64))
    place = {node: at for at, node in enumerate(cut.graphs[0][1].graph.nodes)}
    waiting = [(call, *call.args[-1]) for call in cut.calls(0) if call.args[-1]]
    assert waiting
    for call, product in waiting:
        assert is_product(product) or is_product(product.args[0])
        assert place[product] < place[call]
        (user, *_) = call.users
        assert place[call] < place[user]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_each_dtype(dtype: torch.dtype) -> None:
    model, x = models.mlp().to(dtype), torch.randn(64, 32, dtype=dtype)
    cut = Cuts(bits=8)
    expected = graphs.gradients(model, model, x)
    assert graphs.error(gradients_of(model, cut, x), expected) < 2 * 2.0**-7
    assert bool(cut.calls(0)) == (dtype != torch.float64)


@pytest.mark.parametrize(("width", "is_opaque"), [(64, True), (40, False)])
def test_numbers_of_rows_may_change(width: int, is_opaque: bool) -> None:
    """Groups must fill rows then; others are traced."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.Tanh())
    cut = Cuts(bits=8)
    run = graphs.compiled(model, cut, dynamic=True)
    for count in (96, 160, 333):
        x = torch.randn(count, width)
        expected = graphs.gradients(model, model, x)
        assert graphs.error(graphs.gradients(model, run, x), expected) < 2.0**-7
    assert len(cut.graphs) == 1
    assert bool(cut.calls(0)) == is_opaque


def test_stochastic_rounding_has_the_right_mean() -> None:
    torch.manual_seed(0)
    model, x = models.mlp(), torch.randn(256, 32)
    run = graphs.compiled(model, Cuts(bits=4, rounding="stochastic"))
    expected = graphs.gradients(model, model, x)
    runs = [graphs.gradients(model, run, x) for _ in range(64)]
    mean = [torch.stack(parts).mean(0) for parts in zip(*runs, strict=True)]
    # The mean of 64 independent errors is an eighth of one; what is nonlinear in the codes adds to it.
    assert graphs.error(mean, expected) < graphs.error(runs[0], expected) / 5


@pytest.mark.parametrize(
    "x",
    [torch.randn(4, 32, 64).permute(2, 0, 1), torch.randn(2, 16, 8, 8).to(memory_format=torch.channels_last)],
    ids=["permuted", "channels last"],
)
def test_a_tensor_comes_back_in_its_order(x: Tensor) -> None:
    layout = layout_of(x)
    assert isinstance(layout, GroupLayout)
    assert opaque.suits(x, layout)
    back = opaque.decode(*opaque.encode(x, layout, 8, None), layout, layout.sizes(x), x.dtype)
    assert back.stride() == x.stride()
    assert (back - x).abs().max() <= (x.max() - x.min()) / 2 / 255 * 1.02  # half a step, rounded up to bfloat16


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # a compiler may warn
@inductor_config.patch(force_disable_caches=True)
def test_inductor_runs_them() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(models.Llama(), models.mlp(64)), torch.randn(2, 64, 64)
    cut = Cuts(bits=4)
    expected = gradients_of(model, cut, x)
    torch._dynamo.reset()
    run = torch.compile(model, options={"custom_partitioner_fn": cut.cut})
    assert graphs.error(graphs.gradients(model, run, x), expected) < 1e-3
