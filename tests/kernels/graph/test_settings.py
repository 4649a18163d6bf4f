"""Compressed models in what else users bring: transforms, recurrent layers, checkpoints, compilers, hooks."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.kernels.graph.nets import Block, assert_same, batch, loss_of, net, pair, steps, tower
from tests.kernels.saved import bytes_allocated


@pytest.mark.parametrize("bits", [None, 8])
def test_transforms_of_torch_func(bits: int | None) -> None:
    """grad, vmap of grad and jvp run the module's own forward, before and after it was captured."""
    stock, ours, _ = pair(bits=bits)
    values = dict(stock.named_parameters())

    def loss(parameters: dict[str, Tensor], x: Tensor, model: nn.Module) -> Tensor:
        made: Tensor = torch.func.functional_call(model, parameters, (x[None],)).square().sum()
        return made

    for _ in range(2):
        of_each = []
        for model in (stock, ours):
            each = torch.func.vmap(torch.func.grad(loss), (None, 0, None))(values, batch(8), model)
            single = torch.func.grad(loss)(values, batch(8)[0], model)
            along = torch.func.jvp(model, (batch(),), (batch() + 1,))[1]
            of_each.append([*each.values(), *single.values(), along])
        assert all(torch.equal(a, b) for a, b in zip(*of_each, strict=True))
        ours(batch()).sum().backward()


def test_functional_call() -> None:
    """Other weights than the module's own get the gradients."""
    stock, ours, _ = pair()
    ours(batch()).sum().backward()
    ours.zero_grad()
    of_each = []
    for model in (stock, ours):
        others = {name: (p.detach() * 1.5).requires_grad_() for name, p in model.named_parameters()}
        torch.func.functional_call(model, others, (batch(),)).square().sum().backward()
        of_each.append([other.grad for other in others.values()])
        assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(*of_each, strict=True))


def test_symbolic_tracing() -> None:
    for model, x in ((net(), batch()), (tower(), batch(width=32))):  # blocks, and parts of what is captured whole
        stock, ours, _ = pair(model)
        assert torch.equal(torch.fx.symbolic_trace(ours)(x), stock(x))


class Recurrent(nn.Module):
    """A block with an LSTM or GRU between other layers."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.before, self.cells, self.after = nn.Linear(64, 64), kind(64, 64, batch_first=True), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.after(F.gelu(self.cells(F.gelu(self.before(x)))[0]))
        return made


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("bits", [None, 8])
def test_recurrent_layers_in_blocks(kind: type[nn.RNNBase], bits: int | None) -> None:
    stock, ours, handle = pair(nn.Sequential(Recurrent(kind), Recurrent(kind)), bits=bits)
    steps((stock, ours), lambda model: model(batch().view(8, 12, 64)).square().sum(), 2)
    if bits is None:
        assert_same(ours, stock)
    assert list(handle.stock) == ["0.cells", "1.cells"]


def test_a_model_that_is_recurrent() -> None:
    stock, ours, handle = pair(nn.LSTM(64, 64, num_layers=2, dropout=0.2))
    with pytest.warns(UserWarning, match="ran as stock: PyTorch's compiler captures no recurrent layers"):
        steps((stock, ours), lambda model: model(batch().view(8, 12, 64))[0].square().sum(), 2)
    assert_same(ours, stock)
    assert "the model runs as stock: PyTorch's compiler captures no recurrent layers" in str(handle)


class Around(nn.Module):
    """Blocks, with a checkpoint around each."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(0.2) for _ in range(2))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


class Inside(nn.Module):
    """A block that checkpoints a part of its own."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.last, self.reentrant = Block(0.2), nn.Linear(64, 64), reentrant

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(checkpoint(self.inner, x, use_reentrant=self.reentrant))
        return made


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("bits", [None, 8])
def test_checkpoints(inside: bool, reentrant: bool, bits: int | None) -> None:
    """Around blocks and inside of them; nothing is captured again at later steps."""
    made = nn.Sequential(Inside(reentrant), Inside(reentrant)) if inside else Around(reentrant)
    stock, ours, handle = pair(made, bits=bits)
    steps((stock, ours), lambda model: model(batch().requires_grad_()).square().sum(), 2)
    if bits is None:
        assert_same(ours, stock)
    captured = len(handle.report.graphs)
    steps((ours,), lambda model: model(batch().requires_grad_()).square().sum(), 2)
    assert len(handle.report.graphs) == captured
    assert not handle.stock


@pytest.mark.parametrize("bits", [None, 8])
def test_checkpoints_inside_blocks_save_no_more_than_stock(bits: int | None) -> None:
    """What a checkpoint of the user's own computes again, products too, is not saved."""
    stock, ours, handle = pair(nn.Sequential(Inside(False), Inside(False)), bits=bits)
    ours(batch(512).requires_grad_()).sum().backward()
    grown = [bytes_allocated(model, batch(512).requires_grad_())[1] for model in (stock, ours)]
    masks = 2 * 512 * 64 // 8  # of dropout, which is not drawn again
    assert grown[1] <= grown[0] + masks
    assert not handle.stock


@pytest.mark.filterwarnings("ignore:torch.compile runs a model")
def test_within_an_outer_compile() -> None:
    stock, ours, handle = pair(net(0.2))
    compiled = torch.compile(ours, backend="aot_eager")
    steps((stock,))
    steps((ours,), lambda _: loss_of(compiled), 2)
    assert_same(ours, stock)
    assert handle.report.graphs


def test_a_block_that_only_gives_back_its_input_leaves_others_captured() -> None:
    """As by a flag of the user's own: Dynamo would skip the code that alike blocks share ever after."""

    class Skipping(Block):
        skips = False

        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return x if self.skips else super().forward(x)

    stock, ours, handle = pair(nn.Sequential(*(Skipping() for _ in range(3))))
    for skipped in range(3):
        for model in (stock, ours):
            for place, block in enumerate(model):
                block.skips = place == skipped
        runs = ours[0].forward.engine.runs
        steps((stock, ours))
        assert_same(ours, stock)
        assert ours[0].forward.engine.runs >= runs + 2
        assert not handle.stock


def test_hooks_on_parameters() -> None:
    stock, ours, _ = pair()
    seen: dict[nn.Module, list[Any]] = {stock: [], ours: []}
    for late in (False, True):
        for model in (stock, ours):
            model.zero_grad()
            weight = model[0].up.weight
            removed = [
                weight.register_hook(lambda g: g * 2),
                weight.register_post_accumulate_grad_hook(lambda p, model=model: seen[model].append(p.grad.clone())),
            ]
            loss_of(model).backward()
            for hook in removed if late else ():
                hook.remove()
        assert_same(ours, stock)
    assert len(seen[ours]) == len(seen[stock])
    assert all(torch.equal(a, b) for a, b in zip(seen[ours], seen[stock], strict=True))


def test_hooks_that_change_gradients() -> None:
    """A full backward hook on a block, a pre-hook on its input, and a tensor hook inside forward."""
    stock, ours, _ = pair()
    steps((stock, ours))
    for model in (stock, ours):
        model[0].register_full_backward_hook(lambda _, given, __: (given[0] * 3,))
        model[1].register_full_backward_pre_hook(lambda _, given: (given[0] * 2,))
        model[1].register_forward_pre_hook(lambda _, args: (args[0] + 1,))
    x = batch().requires_grad_(), batch().requires_grad_()
    for model, given in zip((stock, ours), x, strict=True):
        model.zero_grad()
        model(given).square().sum().backward()
    assert_same(ours, stock)
    assert x[0].grad is not None
    assert torch.equal(x[0].grad, x[1].grad)


@dataclass
class Made:
    """What a block returns."""

    hidden: Tensor
    extra: dict[str, list[Tensor | int | None]]


class Dataclasses(nn.Module):
    """Takes and returns dataclasses with nested values."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.side = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, given: Made) -> Made:
        hidden = F.gelu(self.inner(given.hidden))
        return Made(hidden, {"side": [F.silu(self.side(hidden)), None, 3]})


def test_nested_results() -> None:
    stock, ours, handle = pair(nn.Sequential(Dataclasses(), Dataclasses()))
    for used in ("hidden", "extra"):
        for model in (stock, ours):
            model.zero_grad()
            made = model(Made(batch(), {}))
            (made.hidden if used == "hidden" else made.extra["side"][0]).square().sum().backward()
        assert_same(ours, stock)
    assert handle.report.graphs


class Clip(torch.autograd.Function):
    """An autograd.Function of a user, with arithmetic of its own in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        ctx.low = low
        return x.clamp(min=low), x * 2

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return first * (x > ctx.low) + 2 * second, None


def test_functions_of_users() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.last(F.gelu(Clip.apply(self.inner(x), -0.3)[0]))
            return made

    stock, ours, _ = pair(nn.Sequential(Own(), Own()))
    steps((stock, ours), count=2)
    assert_same(ours, stock)


@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("rows", [(0, 96, 0), (96, 0, 1), (1, 2, 96)])
def test_empty_batches_and_single_rows(rows: tuple[int, ...], bits: int | None) -> None:
    stock, ours, handle = pair(net(0.2), bits=bits)
    for count in rows:
        steps((stock, ours), lambda model, count=count: model(batch(count)).square().sum())
        if bits is None or not count:
            assert_same(ours, stock)
        assert all(p.grad is not None and p.grad.isfinite().all() for p in ours.parameters())
    assert not handle.stock
