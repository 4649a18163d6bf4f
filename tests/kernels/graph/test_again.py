"""Blocks whose backward pass runs forward again: exact, from what they are given, and only as far as it must."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from actfit import compress, saved_bytes
from actfit.kernels.graph.engine import Engine
from actfit.kernels.graph.install import install, removed
from actfit.kernels.methods.every_tensor import EveryTensor

BLOCKS = 3
WIDTH = 64


class Noisy(nn.Module):
    """Multiplies by numbers that are drawn."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(x * (1 + 0.1 * torch.randn_like(x)))


class Averaging(nn.Module):
    """Scales by a moving average, and then changes it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.mean.clone()
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * x.abs().mean(0))
        return y


class Attending(nn.Module):
    """Attention within each row."""

    def forward(self, x: Tensor) -> Tensor:
        heads = x.view(-1, 4, 2, 8)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads).reshape(x.shape)


class Stashing(torch.autograd.Function):
    """Keeps its input on the context; PyTorch does not check whether that is changed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * ctx.x.cos()


class Stash(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Stashing.apply(x)
        return y


class Routing(nn.Module):
    """Doubles one number of each row, which others decide; the gradient depends on nothing but which one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = linear()

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.gate(x).argmax(-1)
        return x + nn.functional.one_hot(chosen, WIDTH) * x


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


KINDS: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Sequential(linear(), nn.Dropout(0.3), nn.GELU(), nn.Dropout(0.5), linear()),
    "all dropped": lambda: nn.Sequential(linear(), nn.Dropout(1.0), nn.GELU(), linear()),
    "batch norm": lambda: nn.Sequential(linear(), nn.BatchNorm1d(WIDTH), nn.ReLU(), linear()),
    "noise": lambda: nn.Sequential(linear(), Noisy(), linear()),
    "moving average": lambda: nn.Sequential(linear(), Averaging(), nn.GELU(), linear()),
    "spectral norm": lambda: nn.Sequential(spectral_norm(linear()), nn.GELU(), linear()),
    "attention": lambda: nn.Sequential(linear(), Attending(), linear()),
    "stash": lambda: nn.Sequential(Stash(), linear(), nn.GELU(), linear()),
    "routing": Routing,
    "in place": lambda: nn.Sequential(nn.ReLU(inplace=True), linear(), nn.GELU(), linear()),
}


@contextmanager
def again(model: nn.Module, bits: int | None = None) -> Iterator[Engine]:
    """All repeated blocks run again in backward."""
    method = None if bits is None else EveryTensor(bits, "nearest")
    engine = Engine(method, frozenset(f"blocks.{place}" for place in range(BLOCKS)))
    captured = install(model, engine)
    try:
        yield engine
    finally:
        removed(captured)


def net(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential()
    model.append(linear())
    model.add_module("blocks", nn.Sequential(*[KINDS[kind]() for _ in range(BLOCKS)]))
    return model


def after_two_steps(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Gradients and buffers."""
    torch.manual_seed(1)
    for _ in range(2):
        model.zero_grad()
        model(x).square().mean().backward()
    return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None] + list(model.buffers())


@pytest.mark.parametrize("kind", KINDS)
def test_bit_for_bit(kind: str) -> None:
    model, x = net(kind), torch.randn(256, WIDTH)
    expected = after_two_steps(deepcopy(model), x)
    with again(model) as engine:
        assert all(map(torch.equal, after_two_steps(model, x), expected))
    assert not engine.stock
    assert not engine.skipped


@pytest.mark.parametrize("kind", ["moving average", "spectral norm"])
def test_buffers_that_forward_changes(kind: str) -> None:
    """Backward was to read them as they were, and PyTorch refused it."""
    model, x = net(kind), torch.randn(256, WIDTH)
    expected = after_two_steps(deepcopy(model), x)
    compress(model)
    assert all(map(torch.equal, after_two_steps(model, x), expected))


@pytest.mark.parametrize(("kind", "mask_bits"), [("attention", 0), ("batch norm", 0), ("dropout", 2)])
def test_what_is_saved(kind: str, mask_bits: int) -> None:
    """What each block is given, and a bit for each element that dropout may drop; the model's input is not saved."""
    model, x = net(kind), torch.randn(256, WIDTH)
    with again(model):
        assert saved_bytes(model, x).total == BLOCKS * (x.nbytes + x.numel() * mask_bits // 8)


def test_what_blocks_are_given_has_codes() -> None:
    model, x = net("attention"), torch.randn(256, WIDTH)
    header = 4 / 64  # bytes of an element's share in the range of its group
    with again(model, bits=4) as engine:
        assert saved_bytes(model, x).total == BLOCKS * x.numel() * (0.5 + header)
        model(x).sum().backward()
        (row,) = [row for graph in engine.graphs for row in graph.crossings if row.form == "4 bits"]
        assert row.site == ": its input"


def test_the_last_product_runs_once() -> None:
    """Backward does not read its result, unlike that of the first."""
    model, x = net("in place"), torch.randn(256, WIDTH)
    with again(model):
        model(x).sum().backward()
        loss = model(x).sum()
        with torch.profiler.profile() as profile:
            loss.backward()
    assert sum(event.count for event in profile.key_averages() if event.key == "aten::addmm") == BLOCKS


@pytest.mark.parametrize("runs_again", [False, True])
def test_weights_that_are_changed_before_backward_are_refused(runs_again: bool) -> None:
    """As by stock; beside a tensor that PyTorch does not check, the check of another was lost."""
    model, x = net("stash"), torch.randn(256, WIDTH)
    with again(model) if runs_again else nullcontext(compress(model)):
        loss = model(x).square().mean()
        with torch.no_grad():
            model.blocks[0][-1].weight.mul_(2)  # type: ignore[index,union-attr]
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_indices_are_those_of_forward() -> None:
    """From a decoded input, some would be others."""
    model, x = net("routing"), torch.randn(256, WIDTH)
    expected = after_two_steps(deepcopy(model), x)
    with again(model, bits=4):
        assert all(map(torch.equal, after_two_steps(model, x), expected))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of a compiler
def test_compiled_dropout() -> None:
    """By the random numbers of eager mode."""
    model, x = net("dropout"), torch.randn(256, WIDTH)
    expected = after_two_steps(deepcopy(model), x)
    names = frozenset(f"blocks.{place}" for place in range(BLOCKS))
    captured = install(model, Engine(None, names, compiles=True))
    with inductor_config.patch(fallback_random=True):
        for got, exact in zip(after_two_steps(model, x), expected, strict=True):
            torch.testing.assert_close(got, exact)
    removed(captured)
