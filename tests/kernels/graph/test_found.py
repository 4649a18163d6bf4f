"""Situations in which strangers' models were once wrong or refused: each by its gradients, exact and by 8 bits."""

import gc
import inspect
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from actfit import KernelError, compress
from actfit.kernels import private
from tests.kernels.graph.conformance import MOST, equal, outcome
from tests.kernels.graph.nets import assert_same, gradients, pair, steps, tower


def old_weight_norm() -> nn.Module:
    """Its weight is a tensor with a graph, which is an attribute of a module."""
    net = tower()
    nn.utils.weight_norm(net[0])
    return net


class Aside(nn.Module):
    """Keeps a part of its loss on itself."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.up(x))
        self.aside = 1e3 * h.square().mean()
        made: Tensor = self.down(h)
        return made


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("made", [old_weight_norm, Aside])
def test_tensors_with_a_graph_on_a_module(made: Callable[[], nn.Module]) -> None:
    """PyTorch refuses copies of such models."""
    x, outcomes = torch.randn(64, 32), []
    for bits in (0, None, 8):
        torch.manual_seed(0)
        model = made()
        if bits != 0:
            compress(model, bits=bits)
        model(x)  # of an earlier step, without backward
        outcomes.append(outcome(model, x, loss=lambda y, m=model: y.square().sum() + getattr(m, "aside", 0.0)))
    stock, exact, coded = outcomes
    assert all(equal(*parts) for parts in zip(exact, stock, strict=True))
    apart = [(a - b).norm() / b.norm() for a, b in zip(coded.gradients, stock.gradients, strict=True)]
    assert max(apart) <= MOST


@pytest.mark.parametrize("bits", [None, 8])
def test_such_a_model_is_freed_without_backward(bits: int | None) -> None:
    model = Aside()
    compress(model, bits=bits)
    model(torch.randn(64, 32))
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


WITHIN: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "save_on_cpu": torch.autograd.graph.save_on_cpu,
    "no hooks": lambda: torch.autograd.graph.disable_saved_tensors_hooks("not here"),
    "anomaly": lambda: torch.autograd.detect_anomaly(check_nan=False),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("name", WITHIN)
def test_within(name: str) -> None:
    stock, ours, handle = pair(tower())
    x = torch.randn(64, 32)
    got, expected = (outcome(model, x, within=WITHIN[name]()) for model in (ours, stock))
    assert all(equal(*parts) for parts in zip(got, expected, strict=True))
    assert handle.report.graphs


def jagged() -> Tensor:
    rows = [torch.randn(count, 32, generator=torch.Generator().manual_seed(count)) for count in (100, 60)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


def doubled() -> Tensor:
    data = torch.linspace(-2, 2, 64 * 32).view(64, 32)
    return TwoTensor(data, data.sin())


@pytest.mark.parametrize("given", [jagged, doubled])
def test_wrapped_tensors(given: Callable[[], Tensor]) -> None:
    stock, ours, _ = pair(tower())
    for model in (stock, ours):
        y = model(given())
        (y.values() if y.is_nested else y).square().sum().backward()
    assert_same(ours, stock)


def changes_output(model: nn.Module, x: Tensor) -> Tensor:
    made: Tensor = model(x).mul_(2)
    return made


def changes_input(model: nn.Module, x: Tensor) -> Tensor:
    given = x.clone()
    y: Tensor = model(given)
    given.mul_(2)
    return y


def changes_weight(model: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = model(x)
    with torch.no_grad():
        model[2].weight.mul_(2)
    return y


@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("changed", [changes_output, changes_input, changes_weight])
def test_what_backward_needs_must_not_change(changed: Callable[[nn.Module, Tensor], Tensor], bits: int | None) -> None:
    """As of stock: never a wrong gradient in silence."""
    torch.manual_seed(0)
    for model in pair(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.Sigmoid()), bits=bits)[:2]:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            changed(model, torch.randn(64, 32)).sum().backward()


ROWS = torch.linspace(-2, 2, 64 * 32).view(64, 32)


def test_to_another_dtype_between_steps() -> None:
    stock, ours, _ = pair(tower())
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        steps((stock, ours), lambda model, dtype=dtype: model.to(dtype)(ROWS.to(dtype)).square().sum())
        assert_same(ours, stock)


def test_weights_that_come_later() -> None:
    with torch.device("meta"):
        ours = tower()
    handle, stock = compress(ours), tower()
    ours.to_empty(device="cpu").load_state_dict(stock.state_dict())
    steps((stock, ours), lambda model: model(ROWS).square().sum())
    assert_same(ours, stock)
    assert handle.report.graphs


@pytest.mark.filterwarnings("ignore:torch.compile runs a model")
@pytest.mark.parametrize("way", ["all, before", "in place, before", "a part"])
def test_compiled_parts(way: str) -> None:
    stock, ours, handle = pair(nn.Sequential(tower(), tower()))
    handle.remove()
    if way == "in place, before":
        ours.compile(backend="aot_eager")
    elif way == "a part":
        ours[1] = torch.compile(ours[1], backend="aot_eager")
    run = torch.compile(ours, backend="aot_eager") if way == "all, before" else ours
    handle = compress(run)
    steps((stock, run), lambda model: model(ROWS).square().sum())
    assert all(map(torch.equal, gradients(ours), gradients(stock)))
    assert handle.report.graphs


def test_rounding_draws_apart_from_dropout() -> None:
    """So forward is stock's; and each step rounds by other numbers."""
    made = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 32))
    stock, ours, _ = pair(made, bits=2, rounding="stochastic")
    x = torch.randn(64, 32)
    expected, first, second = (outcome(model, x) for model in (stock, ours, ours))
    assert equal(first.results, expected.results)
    assert equal(second.results, expected.results)
    assert not equal(first.gradients, second.gradients)


def test_sizes_that_come_at_the_first_call() -> None:
    ours = nn.Sequential(nn.LazyLinear(64), nn.GELU(), nn.LazyLinear(8))
    handle, x = compress(ours), torch.randn(64, 32)
    ours(x)
    got = outcome(ours, x)
    assert handle.report.graphs
    handle.remove()
    ours.zero_grad()
    assert all(equal(*parts) for parts in zip(got, outcome(ours, x), strict=True))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_other_compilers_see_stock() -> None:
    """But for torch.jit.script, which is told what to do."""
    stock, ours, _ = pair(tower())
    x = torch.randn(64, 32)
    assert inspect.signature(ours.forward) == inspect.signature(stock.forward)
    runs = [torch.jit.trace(ours, x), torch.fx.symbolic_trace(ours)]
    runs.append(torch.export.export(ours, (x,), strict=False).module())
    assert all(torch.equal(run(x), stock(x)) for run in runs)
    with pytest.raises(
        KernelError, match=r"^model must be stock for torch\.jit\.script, .*; call remove\(\) of its handle"
    ):
        torch.jit.script(ours)


@pytest.mark.skipif(private.release() < (2, 10), reason="strict export of torch 2.9 takes no object as forward")
def test_strict_export_sees_stock() -> None:
    stock, ours, _ = pair(tower())
    x = torch.randn(64, 32)
    assert torch.equal(torch.export.export(ours, (x,), strict=True).module()(x), stock(x))


def test_batches_of_gradients() -> None:
    stock, ours, _ = pair(tower())
    x, directions = torch.randn(64, 32, requires_grad=True), torch.randn(3, 64, 32)
    got, expected = (torch.autograd.grad(model(x), x, directions, is_grads_batched=True)[0] for model in (ours, stock))
    assert torch.equal(got, expected)
