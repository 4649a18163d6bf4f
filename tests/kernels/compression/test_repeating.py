"""What loops compute, computed again for each operation that reads it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from actfit.kernels.compression import private, repeating
from actfit.kernels.compression.nodes import WAITS_BY, is_product
from actfit.kernels.compression.repeating import Computations
from tests.kernels.compression import models
from tests.kernels.compression.in_parts import FUNCTIONS, Mixed, cuts_of, loop_of, moved, written

pytestmark = pytest.mark.usefixtures("small_and_seeded")


@pytest.mark.parametrize(
    "function", [FUNCTIONS["gelu"], FUNCTIONS["gate"], lambda a, b: models.WrittenOut()(a) * b.sigmoid()]
)
def test_operations_share_no_computation(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Else Inductor could hold in memory what several read. Products are not computed again."""
    _, _, (module,) = cuts_of(Mixed(function), torch.randn(4, 16, 32))
    computed = {
        node
        for result in written(module)
        for node in loop_of(result.args[0])
        if torch.Tag.pointwise in getattr(node.target, "tags", ()) and WAITS_BY not in node.meta
    }
    assert len([node for node in computed if "decoded" in node.name]) > len(written(module))
    assert all(len(node.users) == 1 for node in computed)
    assert len(list(filter(is_product, module.graph.nodes))) == 4  # for three weights, and the last layer's input


def chain(length: int) -> fx.GraphModule:
    """The graph of x = x * sigmoid(x), over and over: without shared nodes, its size doubles each time."""

    def function(x: Tensor) -> list[Tensor]:
        for _ in range(length):
            x = x * x.sigmoid()
        return [x]

    return private.trace(function, torch.randn(4))


def test_long_computations_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of links of 2, 6, 14 and 30 operations, and so on, those below the limit get copies, however deep they are."""
    monkeypatch.setattr(repeating, "LONGEST", 8)
    module = chain(20)
    (output,) = module.graph.find_nodes(op="output")
    (last,) = output.args[0]
    computations = Computations(module.graph)
    products = module.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)
    with module.graph.inserting_before(output):
        assert computations.for_one_operation(last) is last
        assert computations.for_one_operation(products[2]) is products[2]
        copy = computations.for_one_operation(products[1])
    assert copy is not products[1]
    assert copy.args[0] is not products[0]
    assert len(products[0].users) == 2


def test_nothing_is_repeated_where_a_tensor_changes() -> None:
    """A copy after the change would read what is there then."""

    def function(x: Tensor, p: Tensor) -> Tensor:
        y = x.sigmoid() * p
        z = y.sin()
        p.copy_(z @ z.t() @ z)
        return y.cos() @ z.t()

    before, after = moved(function)
    parts, p = torch.randn(2, 8, 2, 4, 8), torch.randn(16, 64)
    assert torch.equal(after(parts, p.clone())[0], before(parts, p.clone())[0])
