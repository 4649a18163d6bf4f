"""Nested forward AD on graphs, by its three front ends: fewer bytes, training as before, dynamic shapes, refusals."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kernels import saved_bytes
from kernels.errors import KernelError
from kernels.forward_ad import backend, exported, traced, wrap
from kernels.forward_ad.rewrite import RegionModule
from kernels.memory.zoo import build
from tests.kernels.forward_ad.chains import WRITTEN, mish
from tests.kernels.forward_ad.graphs import (
    DOUBLE,
    MARKS,
    Act,
    Branching,
    Model,
    Network,
    Rewritten,
    Swish,
    each_front_end,
    in_units,
    wave,
)

pytestmark = MARKS

each_chain = pytest.mark.parametrize(("function", "plain", "nested"), WRITTEN.values(), ids=WRITTEN)


@each_chain
@each_front_end
def test_bytes_between_linear_layers(
    front_end: str, function: Callable[[Tensor], Tensor], plain: int, nested: int
) -> None:
    model, x = nn.Sequential(nn.Linear(16, 32), Act(function), nn.Linear(32, 16)), torch.randn(64, 16)
    unit = 64 * 32 * 4
    assert in_units(model, x, unit) == plain
    rewritten = Rewritten(front_end, model, x)
    assert in_units(rewritten.module, x, unit) == nested
    assert rewritten.regions == (nested < plain)


@each_chain
def test_bytes_after_batch_norm_are_one_unit_more(
    function: Callable[[Tensor], Tensor], plain: int, nested: int
) -> None:
    """Returns its input."""
    layers = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), Act(function), nn.Conv2d(8, 3, 3, padding=1)
    model, x = nn.Sequential(*layers), torch.randn(2, 3, 32, 32)
    unit = 2 * 8 * 32 * 32 * 4
    assert in_units(model, x, unit) == plain + 1
    assert in_units(traced(model, x), x, unit) == nested + 1


@each_front_end
def test_training_what_is_rewritten_trains_the_model(front_end: str) -> None:
    model, x = Network(), torch.randn(4, 3, 8, 8, dtype=DOUBLE)
    other = copy.deepcopy(model)
    rewritten = Rewritten(front_end, model, x)
    if front_end != "compiled":
        assert dict(rewritten.module.named_parameters()).keys() == dict(model.named_parameters()).keys()
    for module, owner in ((other, other), (rewritten.module, model)):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            module(x).square().sum().backward()
            optimizer.step()
        assert owner.norm.num_batches_tracked == 3
    for name, tensor in other.state_dict().items():
        assert torch.allclose(tensor, model.state_dict()[name], rtol=0, atol=1e-12), name
    assert rewritten.regions == 1


def test_measuring_what_is_compiled_puts_statistics_back() -> None:
    model, x = Network(), torch.randn(4, 3, 8, 8, dtype=DOUBLE)
    before = copy.deepcopy(model.state_dict())
    assert saved_bytes(torch.compile(model, backend=backend()), x).total < saved_bytes(model, x).total
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_traced_models_change_their_mode_and_shapes() -> None:
    model, x = Network(), torch.randn(4, 3, 8, 8, dtype=DOUBLE)
    module = traced(model, x)
    module.eval()
    y = torch.randn(2, 3, 6, 6, dtype=DOUBLE)
    assert torch.equal(module(y), model(y))
    assert not model.norm.training


def test_exports_with_dynamic_shapes() -> None:
    model, x = Network(), torch.randn(4, 3, 8, 8, dtype=DOUBLE)
    model.eval()
    module = exported(model, (x,), dynamic_shapes=({0: torch.export.Dim("n", max=9)},))
    y = torch.randn(2, 3, 8, 8, dtype=DOUBLE)
    assert torch.equal(module(y), model(y))


def test_compiled_with_dynamic_shapes() -> None:
    model, rewriting = Network(), backend()
    module = torch.compile(model, backend=rewriting, dynamic=True)
    for n in (4, 5):
        x = torch.randn(n, 3, 8, 8, dtype=DOUBLE)
        torch.manual_seed(n)
        y = module(x)
        torch.manual_seed(n)
        assert torch.equal(y, model(x))
    assert (rewriting.graphs, rewriting.regions, rewriting.left) == (1, 1, [])


def test_graphs_may_break() -> None:
    def run(x: Tensor) -> Tensor:
        y = mish(x * 1)
        torch._dynamo.graph_break()
        return mish(y) @ y

    rewriting, x = backend(), torch.randn(4, 4, dtype=DOUBLE, requires_grad=True)
    assert torch.equal(torch.compile(run, backend=rewriting)(x), run(x))
    assert rewriting.graphs == 2
    assert 1 <= rewriting.regions <= 2


def test_a_graph_that_cannot_be_observed_is_left() -> None:
    def run(x: Tensor) -> Tensor:
        return mish(x) * x.sum().item()

    rewriting, x = backend(), torch.randn(4, 4, dtype=DOUBLE, requires_grad=True)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        assert torch.equal(torch.compile(run, backend=rewriting)(x), run(x))


def test_constants_that_come_to_be_larger_than_the_source() -> None:
    class Spread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4, dtype=DOUBLE)

        def forward(self, x: Tensor, factor: Tensor) -> Tensor:
            return torch.exp(torch.sin(torch.cos(self.first(x)) * factor))

    model = Spread()
    module = traced(model, torch.randn(3, 4, dtype=DOUBLE), torch.randn(3, 4, dtype=DOUBLE))
    x, factor = torch.randn(1, 4, dtype=DOUBLE), torch.randn(3, 4, dtype=DOUBLE)
    expected, gradients = (
        torch.autograd.grad(run(x, factor).square().sum(), list(model.parameters())) for run in (model, module)
    )
    assert len([submodule for submodule in module.modules() if isinstance(submodule, RegionModule)]) == 1
    assert all(torch.allclose(*pair, rtol=1e-12) for pair in zip(gradients, expected, strict=True))


class Returning(nn.Module):
    """Returns a tensor from the middle of a chain, too."""

    def __init__(self, retaining: bool) -> None:
        super().__init__()
        self.first, self.retaining = nn.Linear(4, 4, dtype=DOUBLE), retaining

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        middle = wave(self.first(x))
        if self.retaining:
            middle.retain_grad()
        return wave(middle), middle * 1 if self.retaining else middle


@each_front_end
def test_the_gradient_of_a_result_in_the_midst(front_end: str) -> None:
    model, x = Returning(retaining=False), torch.randn(3, 4, dtype=DOUBLE)
    gradients = []
    for module in (model, Rewritten(front_end, model, x).module):
        y, middle = module(x)
        gradients.append(torch.autograd.grad(y.square().sum() + middle.sum(), middle)[0])
    assert torch.allclose(*gradients, rtol=1e-12)


def test_a_gradient_retained_in_the_midst() -> None:
    model, x = Returning(retaining=True), torch.randn(3, 4, dtype=DOUBLE)
    module = traced(model, x)
    (retaining,) = (node for node in module.graph.nodes if node.target == "retain_grad")
    assert retaining.args[0].name == "exp"  # unchanged, not a region's result


def test_what_is_spread_out_is_a_source_of_its_own() -> None:
    class Spread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(16, 1), nn.Linear(32, 8)
            self.register_buffer("row", torch.rand(32))

        def forward(self, x: Tensor) -> Tensor:
            return self.last(wave(self.first(x) * self.row))

    model, x = Spread(), torch.randn(64, 16)
    unit = 64 * 32 * 4
    assert in_units(model, x, unit) == 3
    assert in_units(traced(model, x), x, unit) == 2


def test_without_gradients_a_region_runs_as_it_is() -> None:
    model, x = Network(), torch.randn(4, 3, 8, 8, dtype=DOUBLE)
    module = traced(model, x)
    with torch.no_grad():
        torch.manual_seed(2)
        y = module(x)
        torch.manual_seed(2)
        assert torch.equal(y, model(x))
    assert not y.requires_grad


def test_a_second_derivative_is_refused() -> None:
    model, x = Model(lambda _, h: wave(h)), torch.randn(6, 8, dtype=DOUBLE)
    (gradient,) = torch.autograd.grad(traced(model, x)(x).sum(), model.first.weight, create_graph=True)
    with pytest.raises(KernelError, match="differentiated once"):
        torch.autograd.grad(gradient.sum(), model.first.weight)


def test_copies_and_pickles() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), Swish(), nn.Linear(8, 8)), torch.randn(6, 8)
    module = traced(model, x)
    for other in (
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        copy.deepcopy(exported(model, (x,))),  # torch cannot pickle an export's module
    ):
        assert len([submodule for submodule in other.modules() if isinstance(submodule, RegionModule)]) == 1
        assert torch.equal(other(x), model(x))


@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (lambda: traced(torch.tanh), r"model must be a torch.nn.Module, got builtin_function_or_method"),
        (lambda: exported(torch.tanh, ()), r"model must be a torch.nn.Module, got builtin_function_or_method"),
        (lambda: exported(Network(), torch.randn(1)), r"args must be a tuple .* got Tensor"),
        (lambda: exported(Network(), (torch.randn(1),), [1]), r"kwargs must be a mapping, got list"),
        (lambda: exported(nn.DataParallel(Network()), ()), r"before it is wrapped, got DataParallel"),
        (lambda: traced(torch.compile(Network())), r"before it is wrapped, got OptimizedModule"),
        (
            lambda: traced(Branching(), torch.randn(1)),
            r"symbolic_trace can follow, got TraceError.* use forward_ad",
        ),
        (lambda: exported(Branching(), (torch.randn(1),)), r"torch.export takes, got .*; try torch.compile\("),
        (lambda: traced(Network()), r"sample must be what the model is called with, x, got 0 values"),
        (lambda: traced(Network(), torch.randn(2)), r"model must run on fake tensors, .* got RuntimeError"),
    ],
)
def test_refusals(attempt: Callable[[], object], says: str) -> None:
    with pytest.raises(KernelError, match=says) as caught:
        attempt()
    assert "\n" not in str(caught.value)


@pytest.fixture(params=["gpt2", "bert"])
def transformer(request: pytest.FixtureRequest) -> tuple[nn.Module, dict[str, Tensor]]:
    pytest.importorskip("transformers")
    small = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    if request.param == "gpt2":
        small |= {"n_positions": 32, "bos_token_id": 0, "eos_token_id": 1}
    else:
        small |= {"intermediate_size": 128}
    model, _, given = build(request.param, batch=2, seq=16, act="gelu_new", **small)
    return model.double(), given


@pytest.mark.parametrize("front_end", ["eager", "exported", "compiled"])
def test_transformers(transformer: tuple[nn.Module, dict[str, Tensor]], front_end: str) -> None:
    """Besides the tensor that the next layer saves, new GELU saves five tensors, and one when rewritten."""
    model, given = transformer
    ways: dict[str, Callable[[], Any]] = {
        "eager": lambda: wrap(model, min_numel=1),
        "exported": lambda: exported(model, (), given),
        "compiled": lambda: torch.compile(model, backend=backend()),
    }
    runs = []
    for make in (lambda: model, ways[front_end]):
        module = make()
        torch.manual_seed(4)
        loss = module(**given)[0].square().mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        runs.append((loss, gradients, saved_bytes(module, **given).total))
    (loss, gradients, saved), (loss_now, gradients_now, saved_now) = runs
    assert torch.equal(loss, loss_now)
    near = 1e-10 * max(gradient.abs().max().item() for gradient in gradients if gradient is not None)
    for gradient, gradient_now in zip(gradients, gradients_now, strict=True):
        assert (gradient is None) == (gradient_now is None)
        assert gradient is None or torch.allclose(gradient, gradient_now, rtol=0, atol=near)
    unit = 2 * 16 * 4 * 32 * 8
    assert 2 * 3 * unit <= saved - saved_now <= 2 * 3 * unit + unit // 4  # in each layer; and dropout in the pooler


def test_transformers_cannot_be_traced(transformer: tuple[nn.Module, dict[str, Tensor]]) -> None:
    model, given = transformer
    with pytest.raises(KernelError, match=r"symbolic_trace can follow, got .*use forward_ad.exported\(model, args\)"):
        traced(model, *given.values())


class Written(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return mish(x)


class Linears(TorchFunctionMode):
    """Counts calls of F.linear."""

    count = 0

    def __torch_function__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        self.count += func is F.linear
        return func(*args, **(kwargs or {}))


def test_checkpointed_regions_run_once_in_forward() -> None:
    """And save nothing of the chain's inside: their packing hooks do not see it."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(8, 8), Written())]
    module = traced(nn.Sequential(*layers), torch.randn(4, 8))
    x = torch.randn(4, 8, requires_grad=True)
    with Linears() as linears:
        y = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)
    assert linears.count == 4
    (expected,) = torch.autograd.grad(module(x).sum(), x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], expected)
    kept = saved_bytes(lambda x: torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False), x)
    assert [tensor.bytes for tensor in kept.tensors if tensor.dtype == "float32"] == []


def test_transforms_of_torch_func() -> None:
    module = traced(nn.Sequential(nn.Linear(8, 8), Written(), nn.Linear(8, 1)), torch.randn(4, 8))
    x = torch.randn(4, 8)
    expected = torch.autograd.grad(module(probe := x.clone().requires_grad_()).sum(), probe)[0]
    torch.testing.assert_close(torch.func.grad(lambda x: module(x).sum())(x), expected)


def test_a_backend_that_is_not_called() -> None:
    with pytest.raises(Exception, match=r"backend must be called without arguments"):
        torch.compile(nn.Linear(2, 2), backend=backend)(torch.randn(1, 2))
