"""Element-wise operations on decoded tensors, in the shape of their codes' parts."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from kernels.compression import forms, private, splice
from kernels.compression.nodes import cone, is_product
from kernels.compression.regions import WAITS_BY, work_in_parts
from tests.kernels.compression import models
from tests.kernels.compression.cuts import Step, same
from tests.kernels.compression.graphs import partitioner

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "SMALLEST", 64)
    torch.manual_seed(0)


class Mixed(nn.Module):
    """Views and element-wise functions between products, of hidden tensors in more than one shape."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x), self.second(x)))


def reversed_axes(a: Tensor, b: Tensor) -> Tensor:
    """Products of views in another memory order."""
    return (a.transpose(1, 2).sigmoid() * b.transpose(1, 2).tanh()).transpose(1, 2)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gate": lambda a, b: F.silu(a) * b,
    "gelu": lambda a, b: F.gelu(a) + F.gelu(b, approximate="tanh"),
    "another order": reversed_axes,
    "mixed orders": lambda a, b: a.sigmoid() * b.reshape(16, 4, 64).tanh().transpose(0, 1),
    "a row of numbers": lambda a, b: a.sigmoid() * b.mean(-1, keepdim=True),
    "a norm": lambda a, b: F.layer_norm(a, (64,)) * b.sigmoid(),
    "dropout": lambda a, b: F.dropout(F.silu(a), 0.3) * b,
    "relu": lambda a, b: a.relu() * b.relu(),
    "bits as integers": lambda a, b: a.sigmoid() * b.detach().view(torch.int32).float().sin() * b,
    "two widths": lambda a, b: F.silu(a.bfloat16()).float() * b,
    "a number": lambda a, b: F.silu(a) * b.sum() + a.exp(),
    "a constant": lambda a, b: F.silu(a) * (torch.full((4, 16, 64), 2.0) - b) * b.relu(),
}


def cuts_of(function: Callable[..., Any], *inputs: Tensor) -> tuple[Any, Any, list[fx.GraphModule]]:
    """Results of the cut graphs with regions and without, run operation by operation, and the backward graphs."""
    modules: list[fx.GraphModule] = []

    def keep(graph: fx.Graph, decoded: Any) -> None:
        work_in_parts(graph, decoded)
        modules.append(graph.owning_module)

    step = Step(function, partitioner(bits=4))
    with pytest.MonkeyPatch.context() as patch:
        step.run(*inputs).sum().backward()
        patch.setattr(splice, "work_in_parts", lambda graph, decoded: None)
        without = step.again(partitioner(bits=4))
        patch.setattr(splice, "work_in_parts", keep)
        within = step.again(partitioner(bits=4))
    return within, without, modules


def written(module: fx.GraphModule) -> list[fx.Node]:
    """What is written to memory in the shape of parts."""
    return [node for node in module.graph.nodes if node.target is private.IN_MEMORY]


def readers(node: fx.Node) -> Iterator[fx.Node]:
    """Operations other than views that read it."""
    for user in node.users:
        if getattr(user.target, "is_view", False):
            yield from readers(user)
        else:
            yield user


def moved(function: Callable[[Tensor, Tensor], Tensor]) -> tuple[fx.GraphModule, fx.GraphModule]:
    """A graph of a function of a decoded tensor and another, [16, 64] each, before and after."""

    def joined(parts: Tensor, other: Tensor) -> list[Tensor]:
        return [function(private.in_memory(parts).view(16, 64), other)]

    with FakeTensorMode():
        given = torch.randn(2, 8, 2, 4, 8), torch.randn(16, 64)
    before, after = (private.trace(joined, *given) for _ in range(2))
    (kept,), (parts, *_) = written(after), after.graph.nodes
    work_in_parts(after.graph, {next(iter(kept.users)): parts})
    after.graph.lint()
    after.recompile()
    return before, after


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
    assert [user.target for user in sigmoid.users] == [private.IN_MEMORY]


def test_what_changes_a_tensor_is_not_moved() -> None:
    _, after = moved(lambda x, y: y.mul_(x) @ y.t())
    (change,) = (node for node in after.graph.nodes if node.target is aten.mul_.Tensor)
    assert change.args[0].op == "placeholder"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_the_same_bit_for_bit(name: str) -> None:
    within, without, modules = cuts_of(Mixed(FUNCTIONS[name]), torch.randn(4, 16, 32))
    assert modules
    assert same(within, without)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_each_dtype(dtype: torch.dtype) -> None:
    model = Mixed(FUNCTIONS["gate"]).to(dtype)
    within, without, _ = cuts_of(model, torch.randn(4, 16, 32, dtype=dtype))
    assert same(within, without)


@pytest.mark.parametrize("name", ["Llama", "mlp", "conv"])
def test_models(name: str) -> None:
    conv = nn.Sequential(nn.Conv2d(4, 16, 3), nn.SiLU(), nn.Conv2d(16, 16, 3), nn.GELU(), nn.Flatten())
    model, x = {
        "Llama": (models.Llama(), torch.randn(2, 64, 64)),
        "mlp": (models.mlp(64), torch.randn(32, 64)),
        "conv": (conv.to(memory_format=torch.channels_last), torch.randn(4, 4, 18, 18)),
    }[name]
    within, without, _ = cuts_of(model, x)
    assert same(within, without)


@pytest.mark.parametrize("name", ["gate", "gelu", "another order", "two widths", "dropout"])
def test_decoded_tensors_are_not_written_but_what_products_read(name: str) -> None:
    """So that no tensor is written that another loop reads."""
    _, _, (module,) = cuts_of(Mixed(FUNCTIONS[name]), torch.randn(4, 16, 32))
    assert written(module)
    for node in written(module):
        assert any(is_product(reader) or reader.op == "output" for reader in readers(node))


def test_a_result_that_is_written_is_not_computed_again() -> None:
    """Else the gradient that it is made of would be held for its later readers."""
    model = Mixed(lambda a, b: (a.tanh() + b).sigmoid())
    within, without, (module,) = cuts_of(model, torch.randn(4, 16, 32))
    assert same(within, without)
    for node in written(module):
        assert set(node.args[0].users) == {node} or "decoded" in node.args[0].name


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


def loop_of(node: fx.Node) -> set[fx.Node]:
    """What is computed in the loop of a node, and what that reads; without what it waits for."""
    nodes, todo = set(), [node]
    while todo:
        inner = todo.pop()
        if inner not in nodes:
            nodes.add(inner)
            is_read = is_product(inner) or inner.op == "placeholder"
            todo += [] if is_read else inner.all_input_nodes[:1] if WAITS_BY in inner.meta else inner.all_input_nodes
    return nodes


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


def test_operations_share_no_decoding() -> None:
    """Else Inductor would hold what is decoded in memory, where several read it."""
    _, _, (module,) = cuts_of(Mixed(FUNCTIONS["gelu"]), torch.randn(4, 16, 32))
    decoded = [node for node in module.graph.nodes if "decoded" in node.name and node.meta["val"].dim() == 5]
    steps = {step for node in decoded for step in loop_of(node) if step.op == "call_function" and not is_product(step)}
    assert len(decoded) > len(written(module))
    assert all(len(step.users) == 1 for step in steps if WAITS_BY not in step.meta)


def test_nothing_is_left_unused() -> None:
    _, _, (module,) = cuts_of(Mixed(FUNCTIONS["gelu"]), torch.randn(4, 16, 32))
    assert all(node.users for node in module.graph.nodes if node.op == "call_function")


def test_decoding_waits_for_no_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number is there from the beginning, and would order nothing."""
    monkeypatch.setattr(splice, "work_in_parts", lambda graph, decoded: modules.append(graph.owning_module))
    modules: list[fx.GraphModule] = []
    Step(Mixed(FUNCTIONS["a constant"]), partitioner(bits=4)).run(torch.randn(4, 16, 32)).sum().backward()
    assert awaited(modules[0])
    assert all(node.all_input_nodes or node.op == "placeholder" for node in awaited(modules[0]))


def test_what_a_product_reads_beside_a_result_waits_for_it() -> None:
    """The input of the last layer is decoded once the gradient before it is there, not in the loops that make it."""
    model = nn.Sequential(nn.Linear(32, 64), nn.Sigmoid(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 32))
    _, _, (module,) = cuts_of(model, torch.randn(16, 32))
    assert len(written(module)) == 4
    for node in written(module):
        assert any(made.target is aten.bitwise_or.Tensor for made in cone(node))


def test_what_leaves_a_rest_is_joined() -> None:
    model = nn.Sequential(nn.Linear(32, 40), nn.GELU(), nn.Linear(40, 32))
    within, without, modules = cuts_of(model, torch.randn(50, 32))
    assert same(within, without)
    errors = [node for module in modules for node in module.graph.nodes if node.target is aten.erf.default]
    assert {node.meta["val"].shape for node in errors} == {(50, 40)}
