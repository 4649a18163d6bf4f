"""What decoding in the shape of codes' parts waits for."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode

from actfit.kernels.compression import private
from actfit.kernels.compression.nodes import WAITS_BY, cone, is_product
from actfit.kernels.compression.regions import work_in_parts
from tests.kernels.compression.in_parts import FUNCTIONS, Mixed, cuts_of, loop_of, written

aten = torch.ops.aten

pytestmark = pytest.mark.usefixtures("small_and_seeded")


def awaited(module: fx.GraphModule) -> list[fx.Node]:
    """What decoding waits for."""
    numbers = [node.args[1] for node in module.graph.nodes if node.target is aten.bitwise_or.Tensor]
    for place, node in enumerate(numbers):
        while node.target in (aten.bitwise_and.Scalar, torch.ops.prims.convert_element_type.default, aten.select.int):
            node = node.args[0]
        while getattr(node.target, "is_view", False):
            node = node.args[0]
        numbers[place] = node
    return numbers


def test_decoding_waits_for_the_product_before() -> None:
    """It waits for no result in the same loop; of what is written it still waits for all products."""
    _, _, (module,) = cuts_of(Mixed(FUNCTIONS["gate"]), torch.randn(4, 16, 32))
    assert awaited(module)
    assert all(is_product(node) or node.op == "placeholder" for node in awaited(module))


def test_loops_wait_for_nothing_that_they_read() -> None:
    """Else Inductor would not write their results in its place, and hold one tensor more."""
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    _, _, (module,) = cuts_of(model, torch.randn(64, 32, requires_grad=True))
    assert awaited(module)
    for node in written(module):
        waits = [wait for wait in cone(node) if WAITS_BY in wait.meta]
        sources = [part for wait in waits for part in cone(wait.meta[WAITS_BY]) if is_product(part)]
        assert set(sources).isdisjoint(loop_of(node))


READING: dict[str, tuple[Callable[[Tensor, Tensor], list[Tensor]], bool]] = {  # and whether decoding waits
    "all": (lambda x, p: [(x.sigmoid() * p) @ p.t()], False),
    "all, by what is computed of it": (lambda x, p: [((x * p).sigmoid() * x) @ p.t()], False),
    "one of two": (lambda x, p: [(x.sigmoid() * p) @ p.t(), x.sigmoid() @ p.t()], True),
    "none": (lambda x, p: [x.sigmoid() @ p.t()], True),
    "all but x itself": (lambda x, p: [(x.sigmoid() * p) @ p.t(), x.sum(0)], True),
}


@pytest.mark.parametrize("name", READING)
def test_what_some_loops_do_not_read_is_awaited(name: str) -> None:
    """Of a product p of two inputs, and an x that is decoded when p is there."""
    function, waits = READING[name]

    def joined(field: Tensor, first: Tensor, second: Tensor) -> list[Tensor]:
        product = first @ second
        after = field | (product.select(0, 0).select(0, 0).to(torch.int32) & 0)
        return function(private.in_memory(after.to(torch.float32)).view(16, 64), product)

    with FakeTensorMode():
        given = torch.ones(2, 8, 2, 4, 8, dtype=torch.int32), torch.randn(16, 16), torch.randn(16, 64)
    module = private.trace(joined, *given)
    (wait,), (kept,) = module.graph.find_nodes(op="call_function", target=aten.bitwise_or.Tensor), written(module)
    wait.meta[WAITS_BY] = module.graph.find_nodes(op="call_function", target=aten.select.int)[0]
    work_in_parts(module.graph, {next(iter(kept.users)): kept.args[0]})
    assert bool(module.graph.find_nodes(op="call_function", target=aten.bitwise_or.Tensor)) == waits
