"""Models of strangers that were once wrong or refused: each by its gradients, exact and by 8 bits."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.compiler import nested_compile_region
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from tests.kernels.graph.conformance import MOST, Net, assert_kept, cases, equal, error, outcome
from tests.kernels.graph.nets import pair, tower


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
NOT_CAPTURED: dict[str, tuple[Callable[[], nn.Module], str]] = {  # and what PyTorch says of it
    "a sparse product": (
        lambda: Net(lambda net, x: F.gelu(torch.sparse.mm(SPARSE, net[0](x))), nn.Linear(32, 64)),
        "parse",
    ),
    "cumulative batch norm": (
        lambda: nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64, momentum=None), nn.ReLU()),
        "Tensor.item()",
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", NOT_CAPTURED)
def test_what_runs_as_stock_says_so(name: str) -> None:
    torch.manual_seed(0)
    model, said = NOT_CAPTURED[name]
    stock, ours, handle = pair(model(), bits=8)
    x = torch.randn(96, 32)
    with pytest.warns(UserWarning, match="the model (ran as stock|runs as stock, as it cannot be captured): "):
        got = outcome(ours, x)
    assert all(equal(*parts) for parts in zip(got, outcome(stock, x), strict=True))
    outcome(ours, x)  # which PyTorch skips at once, and says nothing of
    (reason,) = handle.stock.values()
    assert said in reason
    assert f"the model runs as stock: {reason}" in str(handle)
    assert "no graph yet" not in str(handle)


class Transposed(nn.Module):
    """Normalises channels that are not neighbours: kernels give other strides than graphs foresee."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(32, 64), norm, nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.second(self.norm(self.first(x).transpose(1, 2)).transpose(1, 2))
        return made


@pytest.mark.parametrize("norm", [partial(nn.BatchNorm1d, 64), partial(nn.LayerNorm, 24)], ids=["batch", "layer"])
@pytest.mark.parametrize("bits", [None, 8])
def test_norms_of_transposed_tensors(norm: Callable[[], nn.Module], bits: int | None) -> None:
    torch.manual_seed(0)
    stock, ours, _ = pair(nn.Sequential(*(Transposed(norm()) for _ in range(2))), bits=bits)
    x = torch.randn(8, 24, 32)
    expected, got = outcome(stock, x), outcome(ours, x)
    assert equal(got.results, expected.results)
    # Without bits other strides sum in another order; with them see `MOST`.
    assert error(got, expected) < (8 * torch.finfo(x.dtype).eps if bits is None else MOST)


@pytest.mark.parametrize("autocast", [True, False])
def test_layer_norms_of_more_digits_than_what_they_normalise(autocast: bool) -> None:
    """On a CPU their statistics are float32, where graphs foresee bfloat16."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), *(Twice() for _ in range(2)))
    x = torch.randn(96, 32)
    if not autocast:
        x = x.bfloat16()
        for layer in model.modules():
            layer.to(torch.bfloat16 if isinstance(layer, nn.Linear) else torch.float32)
    stock, ours, _ = pair(model, bits=8)
    expected, got = (
        outcome(each, x, within=torch.autocast("cpu", torch.bfloat16, enabled=autocast)) for each in (stock, ours)
    )
    assert equal(got.results, expected.results)
    assert error(got, expected) < MOST


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return x


@pytest.mark.parametrize("bias", [True, False])
def test_results_may_be_changed_in_place(bias: bool) -> None:
    """Those of a product without a bias are views of what the product gives."""
    torch.manual_seed(0)
    blocks = nn.ModuleList(nn.Sequential(nn.GELU(), nn.Linear(32, 32, bias=bias)) for _ in range(2))
    stock, ours, _ = pair(Net(lambda net, x: net[0][1](net[0][0](x).add_(x)).add_(1).relu_(), blocks))
    x = torch.randn(4, 24, 32)
    expected, got = outcome(stock, x), outcome(ours, x)
    assert all(equal(*parts) for parts in zip(got, expected, strict=True))
