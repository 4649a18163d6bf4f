"""Element-wise operations on decoded tensors, in the shape of their codes' parts."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from actfit.kernels import private
from actfit.kernels.compression.nodes import is_product
from tests.kernels.compression import models
from tests.kernels.compression.cuts import same
from tests.kernels.compression.in_parts import FUNCTIONS, Mixed, cuts_of, moved, readers, written

aten = torch.ops.aten

pytestmark = pytest.mark.usefixtures("small_and_seeded")


def attention(y: Tensor) -> Tensor:
    heads = y.view(1, 1, 16, 64)
    return aten._scaled_dot_product_flash_attention_for_cpu(heads, heads, heads)[0].view(16, 64)


OF_DECODED: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], bool]] = {  # and whether it is computed in parts
    "a product": (lambda x, y: (x.sigmoid() * y) @ y.t(), True),
    "a product of a view": (lambda x, y: (x.sigmoid() * y).view(64, 16) @ y, True),
    "a product of a view, and a sum": (lambda x, y: torch.cat([*(x := x.sigmoid()).view(64, 16) @ y, x.sum(0)]), True),
    "a sum": (lambda x, y: (x.sigmoid() * y).sum(0), False),
    "a sum of a view": (lambda x, y: (x.sigmoid() * y).view(64, 16).sum(0), False),
    "another dtype": (lambda x, y: (x.sigmoid() * y.bfloat16()) @ y.t(), True),
    "bits": (lambda x, y: (x.view(torch.int32).to(torch.float32) * y) @ y.t(), False),
    "what is not in memory": (lambda x, y: (x * y.softmax(-1)) @ y.t(), False),
    "another order": (lambda x, y: (x * y.view(64, 16).t().sigmoid().view(16, 64)) @ y.t(), False),
    "a column": (lambda x, y: (x * y[:, :1]) @ y.t(), False),
    "one number": (lambda x, y: (torch.full((16, 64), 2.0) - x.sigmoid()) @ y.t(), True),
    "one of the results of a product": (lambda x, y: (x * attention(y)) @ y.t(), True),
    "one of the results of a norm": (
        lambda x, y: (x * aten.native_layer_norm(y, [64], None, None, 0)[0]) @ y.t(),
        False,
    ),
}


@pytest.mark.parametrize("name", OF_DECODED)
def test_what_is_computed_in_parts(name: str) -> None:
    function, is_moved = OF_DECODED[name]
    before, after = moved(function)
    parts, other = torch.randn(2, 8, 2, 4, 8), torch.randn(16, 64)
    assert torch.equal(after(parts, other)[0], before(parts, other)[0])
    dims = {
        node.meta["val"].dim() for node in after.graph.nodes if torch.Tag.pointwise in getattr(node.target, "tags", ())
    }
    assert (5 in dims) == is_moved


def test_a_decoded_tensor_is_written_once() -> None:
    """For a sum, and for a product of a view of it; beside it, its sigmoid is written."""
    _, after = moved(
        lambda x, y: torch.cat([x.sum(0), (x.view(64, 16) @ y).flatten(), (x.sigmoid() @ y.t()).flatten()])
    )
    assert len(written(after)) == 2


def test_a_result_whose_view_is_written_is_not_computed_again() -> None:
    _, after = moved(lambda x, y: ((s := x.sigmoid()).view(64, 16) @ y) * ((s * y) @ y.t()).sum())
    (sigmoid,) = after.graph.find_nodes(op="call_function", target=aten.sigmoid.default)
    assert [user.target for user in sigmoid.users] == [private.force_stride_order]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_the_same_bit_for_bit(name: str) -> None:
    within, without, modules = cuts_of(Mixed(FUNCTIONS[name]), torch.randn(4, 16, 32))
    assert modules
    assert same(within, without)


@pytest.mark.parametrize("name", ["gelu", "another order"])
def test_decoded_tensors_are_not_written_but_what_products_read(name: str) -> None:
    """So that no tensor is written that another loop reads; and nothing is left unused."""
    _, _, (module,) = cuts_of(Mixed(FUNCTIONS[name]), torch.randn(4, 16, 32))
    assert written(module)
    for node in written(module):
        assert any(is_product(reader) or reader.op == "output" for reader in readers(node))
    assert all(node.users for node in module.graph.nodes if node.op == "call_function")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_each_dtype(dtype: torch.dtype) -> None:
    model = Mixed(FUNCTIONS["gate"]).to(dtype)
    within, without, _ = cuts_of(model, torch.randn(4, 16, 32, dtype=dtype))
    assert same(within, without)


@pytest.mark.slow
def test_models() -> None:
    conv = nn.Sequential(nn.Conv2d(4, 16, 3), nn.SiLU(), nn.Conv2d(16, 16, 3), nn.GELU(), nn.Flatten())
    last = conv.to(memory_format=torch.channels_last)
    for model, x in ((models.Llama(), torch.randn(2, 64, 64)), (last, torch.randn(4, 4, 18, 18))):
        within, without, _ = cuts_of(model, x)
        assert same(within, without)


def test_a_result_that_is_written_is_not_computed_again() -> None:
    """Else the gradient that it is made of would be held for its later readers."""
    model = Mixed(lambda a, b: (a.tanh() + b).sigmoid())
    within, without, (module,) = cuts_of(model, torch.randn(4, 16, 32))
    assert same(within, without)
    for node in written(module):
        assert set(node.args[0].users) == {node} or "decoded" in node.args[0].name


def test_what_leaves_a_rest_is_joined() -> None:
    model = nn.Sequential(nn.Linear(32, 36), nn.GELU(), nn.Linear(36, 32))
    within, without, modules = cuts_of(model, torch.randn(37, 32))
    assert same(within, without)
    errors = [node for module in modules for node in module.graph.nodes if node.target is aten.erf.default]
    assert {node.meta["val"].shape for node in errors} == {(37, 36)}
