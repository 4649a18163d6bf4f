"""Situations in which strangers' models were once wrong or refused: each by its gradients, exact and by 8 bits."""

import gc
import inspect
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.compiler import nested_compile_region
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from actfit import KernelError, compress
from tests.kernels.graph.conformance import MOST, Net, assert_kept, cases, equal, outcome
from tests.kernels.graph.nets import assert_same, gradients, pair


def tower(width: int = 64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, 32))


class Experts(nn.Module):
    """Of two experts, one sees the tokens that it is given; how many depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.expert = nn.Linear(32, 2), tower()

    def forward(self, x: Tensor) -> Tensor:
        own = (self.router(x).argmax(1) == 0).nonzero().squeeze(1)
        return x.index_add(0, own, self.expert(x[own]))


class Region(nn.Module):
    """A block whose graph torch.compile would share."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.tower = nn.LayerNorm(32), tower()

    @nested_compile_region
    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.tower(self.norm(x))
        return made


class Cells(nn.Module):
    """Recurrent cells in a loop of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTMCell(32, 32), nn.GRUCell(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        h, c = self.first(x)
        for _ in range(2):
            h, c = self.first(x, (h, c))
            h = self.second(x, h)
        made: Tensor = h
        return made


class Norm(torch.autograd.Function):
    """An RMS norm of another library, which saves its statistic."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        scale = x.square().mean(-1, keepdim=True).rsqrt()
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Tensor:
        x, scale = ctx.saved_tensors
        y, grad = x * scale, given[0]
        return (grad - y * (grad * y).mean(-1, keepdim=True)) * scale


class Attention(torch.autograd.Function):
    """Saves its log-sum-exp, as flash attention does."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = q @ k.mT
        total = logits.logsumexp(-1)
        result = (logits - total[..., None]).exp() @ v
        ctx.save_for_backward(q, k, v, result, total)
        return result

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, ...]:
        q, k, v, result, total = ctx.saved_tensors
        p, grad = (q @ k.mT - total[..., None]).exp(), given[0]
        inner = p * (grad @ v.mT - (grad * result).sum(-1, keepdim=True))
        return inner @ k, inner.mT @ q, p.mT @ grad


def reused(net: Net, x: Tensor) -> Tensor:
    """A mask is changed after its use."""
    q = net[0](x).view(1, 4, -1, 8)
    mask = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
    first = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    mask.fill_(True)
    return first + F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


products = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])


class Selective(nn.Module):
    """Saves the results of some products, and computes all else again."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(tower(), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + checkpoint(self.tower, x, use_reentrant=False, context_fn=products)
        return made


def parametrized(by: Callable[..., Any]) -> nn.Sequential:
    net = tower()
    by(net[0])
    return net


MODELS: dict[str, Callable[[], nn.Module]] = {
    "experts": Experts,
    "blocks of experts": lambda: nn.Sequential(Experts(), Experts()),
    "regions": lambda: nn.Sequential(Region(), Region()),
    "recurrent cells": Cells,
    "weight norm": lambda: parametrized(nn.utils.parametrizations.weight_norm),
    "spectral norm": lambda: parametrized(nn.utils.parametrizations.spectral_norm),
    "complex numbers": lambda: Net(
        lambda net, x: (lambda z: (z * z.roll(1)).real)(torch.fft.rfft(net[0](x))), nn.Linear(32, 64)
    ),
    "a norm of another library": lambda: Net(
        lambda net, x: Norm.apply(net[0](x)) * Norm.apply(net[1](x)), nn.Linear(32, 64), nn.Linear(32, 64)
    ),
    "attention of another library": lambda: Net(
        lambda net, x: net[1](Attention.apply(*net[0](x).chunk(3, -1))), nn.Linear(32, 96), nn.Linear(32, 32)
    ),
    "a mask that is used again": lambda: Net(reused, nn.Linear(32, 32)),
    "selective checkpoints": lambda: nn.Sequential(Selective(), Selective()),
    "parts that are the same": lambda: nn.Sequential(*[tower()] * 2),
}


@cases(MODELS, ["weight norm", "attention of another library"])
def test_models(name: str) -> None:
    torch.manual_seed(0)
    assert_kept(MODELS[name](), torch.randn(96, 32))


SPARSE = torch.eye(96).to_sparse()
NOT_CAPTURED: dict[str, Callable[[], nn.Module]] = {
    "a sparse product": lambda: Net(lambda net, x: F.gelu(torch.sparse.mm(SPARSE, net[0](x))), nn.Linear(32, 64)),
    "long short-term memory": lambda: Net(lambda net, x: net[0](x)[0], nn.LSTM(32, 32, 2, dropout=0.2)),
    "gated recurrent unit": lambda: Net(lambda net, x: net[0](x)[0], nn.GRU(32, 32, bidirectional=True)),
    "cumulative batch norm": lambda: nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64, momentum=None), nn.ReLU()),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("name", NOT_CAPTURED)
def test_what_runs_as_stock_says_so(name: str, bits: int | None) -> None:
    torch.manual_seed(0)
    stock, ours, handle = pair(NOT_CAPTURED[name](), bits=bits)
    x = torch.randn(96, 32)
    with pytest.warns(UserWarning, match="ran as stock"):
        got = outcome(ours, x)
    assert handle.stock == {"": "no graph was captured"}
    assert "the model runs as stock: no graph was captured" in str(handle)
    assert all(equal(*parts) for parts in zip(got, outcome(stock, x), strict=True))


def old_weight_norm() -> nn.Module:
    """Its weight is a tensor with a graph, which is an attribute of a module."""
    return parametrized(nn.utils.weight_norm)


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


def test_batches_of_gradients() -> None:
    stock, ours, _ = pair(tower())
    x, directions = torch.randn(64, 32, requires_grad=True), torch.randn(3, 64, 32)
    got, expected = (torch.autograd.grad(model(x), x, directions, is_grads_batched=True)[0] for model in (ours, stock))
    assert torch.equal(got, expected)


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_to_another_dtype_between_steps(dtype: torch.dtype) -> None:
    stock, ours, _ = pair(tower())
    ours(torch.randn(64, 32)).sum().backward()
    ours.zero_grad()
    for model in (stock, ours):
        model.to(dtype)(torch.linspace(-2, 2, 64 * 32, dtype=dtype).view(64, 32)).square().sum().backward()
    assert_same(ours, stock)


def test_weights_that_come_later() -> None:
    with torch.device("meta"):
        ours = tower()
    handle, stock = compress(ours), tower()
    ours.to_empty(device="cpu").load_state_dict(stock.state_dict())
    for model in (stock, ours):
        model(torch.linspace(-2, 2, 64 * 32).view(64, 32)).square().sum().backward()
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
    for model in (stock, run):
        model(torch.linspace(-2, 2, 64 * 32).view(64, 32)).square().sum().backward()
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
    runs += [torch.export.export(ours, (x,), strict=strict).module() for strict in (False, True)]
    assert all(torch.equal(run(x), stock(x)) for run in runs)
    with pytest.raises(
        KernelError, match=r"^model must be stock for torch\.jit\.script, .*; call remove\(\) of its handle"
    ):
        torch.jit.script(ours)
