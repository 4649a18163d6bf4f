"""Codes by our own kernels, which models compiled for a GPU use; here their reference runs, on the CPU."""

from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from torch import Tensor, fx, nn

from actfit.kernels.compression import codes, opaque
from actfit.kernels.compression.layout import GroupLayout, layout_of
from actfit.kernels.compression.nodes import is_product
from tests.kernels.compression import graphs, models


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
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


def reached(node: fx.Node) -> set[fx.Node]:
    """What is made of a node, but by decoding, which only waits."""
    made, todo = set(), [node]
    while todo:
        for user in todo.pop().users:
            if user not in made and user.target is not opaque.DECODE and user.op != "output":
                made.add(user)
                todo.append(user)
    return made


def is_moved(node: fx.Node) -> bool:
    return bool(getattr(node.target, "is_view", False))


def gradients_of(model: nn.Module, cut: Any, *inputs: Tensor) -> list[Tensor]:
    return graphs.gradients(model, graphs.compiled(model, cut), *inputs)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bits"), [("Llama", 8), ("Llama", 5), ("mlp", 2)])
def test_codes_are_those_of_the_traced_ones(name: str, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, as operations run one by one."""
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
    calls = cut.calls(0)
    awaited = {call: max((place[product] for product in call.args[-1]), default=-1) for call in calls}
    products = [node for node in place if is_product(node)]
    of_products = {product: reached(product) for product in products}
    for call in calls:
        users = {node for node in reached(call) if not is_moved(node)}
        first = min(users, key=place.__getitem__)
        # The other products that it is made of, and those that used the tensor before:
        made_of = [product for product, ends in of_products.items() if first in ends and product not in reached(call)]
        earlier = [other for other in calls if other.args[0] is call.args[0] and place[other] < place[call]]
        used_it = [product for other in earlier for product in reached(other).intersection(products)]
        before = [place[product] for product in (*made_of, *used_it) if place[product] < place[call]]
        assert awaited[call] >= max(before, default=-1)
    assert sum(at >= 0 for at in awaited.values()) == 4  # those of the gate, and of the norms' inputs


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


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("device", ["cpu", "cuda"], ids=["opaque", "traced"])
def test_the_largest_float16_stays_finite(bits: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid of a group may end beyond it."""
    monkeypatch.setattr(opaque, "DEVICE", device)
    x = torch.linspace(-65504, 65504, 4096).half().requires_grad_()
    cut = Cuts(bits=bits)
    run = graphs.compiled(lambda x: torch.tanh(x * 2.0**-16) * x, cut)
    (gradient,) = torch.autograd.grad(run(x).sum(), x)
    assert gradient.isfinite().all()
    assert bool(cut.calls(0)) == (device == "cpu")
    layout = layout_of(x)
    assert isinstance(layout, GroupLayout)
    if device == "cpu":
        back = opaque.decode(*opaque.encode(x.detach(), layout, bits, None), layout, layout.sizes(x), x.dtype)
    else:
        back = layout.join(codes.decode(codes.encode(layout.split(x.detach()), bits), bits, x.dtype), layout.sizes(x))
    assert back.isfinite().all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # a compiler may warn
@inductor_config.patch(force_disable_caches=True)
def test_inductor_runs_them() -> None:
    torch.manual_seed(0)
    model, x = models.mlp(64), torch.randn(128, 64)
    cut = Cuts(bits=4)
    expected = gradients_of(model, cut, x)
    assert cut.calls(0)
    torch._dynamo.reset()
    run = torch.compile(model, options={"custom_partitioner_fn": cut.cut})
    assert graphs.error(graphs.gradients(model, run, x), expected) < 1e-3


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
