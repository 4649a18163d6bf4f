"""What loops compute, computed again for each operation that reads it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from kernels.compression import private, repeating
from kernels.compression.nodes import WAITS_BY
from kernels.compression.repeating import Computations
from tests.kernels.compression.parts import FUNCTIONS, Mixed, cuts_of, loop_of, written

pytestmark = pytest.mark.usefixtures("small")


def written_out(a: Tensor, b: Tensor) -> Tensor:
    """GELU as GPT-2 has it, by a tanh of which the derivative is computed, too, and a gate."""
    return 0.5 * a * (1.0 + torch.tanh(0.8 * (a + 0.045 * a.pow(3.0)))) * b.sigmoid()


@pytest.mark.parametrize("function", [FUNCTIONS["gelu"], FUNCTIONS["gate"], written_out])
def test_operations_share_no_computation(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Else Inductor could hold in memory what several read."""
    _, _, (module,) = cuts_of(Mixed(function), torch.randn(4, 16, 32))
    computed = {
        node
        for result in written(module)
        for node in loop_of(result.args[0])
        if torch.Tag.pointwise in getattr(node.target, "tags", ()) and WAITS_BY not in node.meta
    }
    assert computed
    assert all(len(node.users) == 1 for node in computed)


def chain(length: int) -> fx.GraphModule:
    """The graph of x = x * sigmoid(x), over and over: without shared nodes, its size doubles each time."""

    def function(x: Tensor) -> list[Tensor]:
        for _ in range(length):
            x = x * x.sigmoid()
        return [x]

    return private.trace(function, torch.randn(4))


def test_long_computations_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of links of 2, 6, 14 and 30 operations, and so on, those below the limit get copies."""
    monkeypatch.setattr(repeating, "LONGEST", 8)
    module = chain(20)
    (output,) = module.graph.find_nodes(op="output")
    (last,) = output.args[0]
    computations, products = (
        Computations(module.graph),
        module.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor),
    )
    with module.graph.inserting_before(output):
        assert computations.for_one_operation(last) is last
        copy = computations.for_one_operation(products[1])
    assert copy is not products[1]
    assert copy.args[0] is not products[0]
    assert len(products[0].users) == 2


def test_what_is_read_is_not_copied() -> None:
    module = chain(2)
    (output,) = module.graph.find_nodes(op="output")
    (last,), (x,) = output.args[0], module.graph.find_nodes(op="placeholder")
    computations = Computations(module.graph)
    computations.read(last.args[0])
    with module.graph.inserting_before(output):
        copy = computations.for_one_operation(last)
        assert computations.for_one_operation(x) is x
        assert computations.for_one_operation(last.args[0]) is last.args[0]
    assert copy is not last
    assert copy.args[0] is last.args[0]
