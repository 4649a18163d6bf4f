"""Calls of compressed models: hooks, copies, sizes, errors, random numbers, what is frozen and shared."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from actfit import KernelError, compress
from actfit.kernels import private
from actfit.kernels.graph.capture import Captured
from tests.kernels.copies import each_copy
from tests.kernels.graph.nets import Block, assert_same, batch, gradients, loss_of, net, pair, steps


@pytest.mark.parametrize("late", [False, True])
def test_hooks_are_called(late: bool) -> None:
    _, ours, _ = pair()
    if late:
        ours(batch().requires_grad_()).sum().backward()
    seen: list[str] = []
    removed = [
        ours[0].norm.register_forward_hook(lambda *_: seen.append("forward, inside")),
        ours[0].up.register_full_backward_hook(lambda *_: seen.append("backward, inside")),
        ours[0].register_forward_pre_hook(lambda *_: seen.append("before the block")),
        ours[0].register_full_backward_hook(lambda *_: seen.append("backward of the block")),
    ]
    expected = ["before the block", "forward, inside", "backward, inside", "backward of the block"]
    ours(batch().requires_grad_()).sum().backward()
    assert seen == expected
    ours(batch().requires_grad_()).sum().backward()
    assert seen == 2 * expected
    for hook in removed:
        hook.remove()
    ours(batch().requires_grad_()).sum().backward()
    assert seen == 2 * expected


def test_a_forward_hook_may_change_what_a_layer_returns() -> None:
    stock, ours, _ = pair()
    steps((ours,))
    for model in (stock, ours):
        model[0].norm.register_forward_hook(lambda _, __, made: made * 2)
    steps((stock, ours))
    assert_same(ours, stock)


def test_without_gradients_stock_runs_and_dynamo_is_not_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    stock, ours, handle = pair()
    monkeypatch.setattr("actfit.kernels.graph.engine.captured", lambda *_: pytest.fail("captured"))
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert torch.equal(ours(batch()), stock(batch()))
            assert torch.equal(ours.eval()(batch()), stock.eval()(batch()))
    assert not handle.report.graphs


def test_eval_with_gradients_is_exact() -> None:
    stock, ours, _ = pair(net(dropout=0.5).eval())
    steps((stock, ours))
    assert_same(ours, stock)


@each_copy
@pytest.mark.parametrize("called", [False, True])
def test_copies_stay_compressed(copied: Callable[[nn.Module], nn.Module], called: bool) -> None:
    stock, ours, _ = pair()
    if called:
        steps((ours,))
    made = copied(ours)
    steps((stock, made))
    assert_same(made, stock)
    calls = [block.__dict__["forward"] for block in made]
    assert all(isinstance(call, Captured) for call in calls)
    assert calls[0].engine is calls[1].engine is not ours[0].forward.engine
    assert calls[0].engine.runs == 2
    assert calls[0]._module() is made[0]


@each_copy
def test_a_handle_is_not_copied(copied: Callable[[object], object]) -> None:
    with pytest.raises(KernelError, match="a handle must stay with its model"):
        copied(pair()[2])


def test_all_sizes_are_captured() -> None:
    stock, ours, handle = pair()
    for rows in range(100, 112):
        runs = ours[0].forward.engine.runs
        steps((stock, ours), lambda model, rows=rows: model(batch(rows)).square().sum())
        assert_same(ours, stock)
        assert ours[0].forward.engine.runs == runs + 2
    assert len(handle.report.graphs) < 5  # symbolic sizes


@pytest.mark.parametrize("bits", [None, 4])
def test_sizes_that_change_save_as_much(bits: int | None) -> None:
    _, ours, handle = pair(bits=bits)
    for rows in (96, 97, 98):
        ours(batch(rows)).square().sum().backward()
    static, dynamic = handle.report.graphs[:2], handle.report.graphs[2:]  # of the first block, and of the others
    saved = [sum(graph.after for graph in graphs) for graphs in (static, dynamic)]
    assert saved[1] == pytest.approx(saved[0], rel=0.02)  # sizes are hints there: 97 rows, not 96


def test_numbers_as_arguments() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(2))

        def forward(self, x: Tensor, scale: float) -> Tensor:
            for block in self.blocks:
                x = block(x, scale)
            return x

    stock, ours, _ = pair(Scaled())
    for k in range(12):
        runs = ours.blocks[0].forward.engine.runs
        steps((stock, ours), lambda model, k=k: model(batch(), 1.0 + k / 10).square().sum())
        assert_same(ours, stock)
        assert ours.blocks[0].forward.engine.runs == runs + 2


class Raises(nn.Module):
    """Raises an error of its own where the input is too long."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 50:
            raise ValueError("at most 50 rows")
        made: Tensor = self.inner(x)
        return made


def test_errors_of_forward_are_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """And PyTorch logs nothing of the tensors without numbers on which it first ran."""
    ours = nn.Sequential(Raises(), Raises())
    handle = compress(ours)
    with pytest.raises(ValueError, match="at most 50 rows"):
        ours(batch(60))
    with pytest.raises(RuntimeError, match=r"mat1 and mat2|size mismatch|shapes cannot be multiplied"):
        ours(torch.randn(3, 7))
    with pytest.raises(TypeError, match="positional argument"):
        ours[0](1, 2, 3)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    ours(batch(40)).sum().backward()
    assert ours[0].inner.weight.grad is not None
    assert handle.report.graphs


def test_dropout_draws_the_numbers_of_stock() -> None:
    stock, ours, handle = pair(net(dropout=0.3))
    for seed in range(3):
        for model in (stock, ours):
            torch.manual_seed(seed)
            model(batch()).square().sum().backward()
        assert_same(ours, stock)
    assert any(row.form == "1 bit" for graph in handle.report.graphs for row in graph.crossings)


@pytest.mark.parametrize("inside", [True, False])
def test_autocast(inside: bool) -> None:
    stock, ours, _ = pair()
    for model in (stock, ours):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(batch()).float().square().sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
    assert_same(ours, stock)
    steps((stock, ours))  # and without it from then on
    assert_same(ours, stock)


def test_a_graph_that_is_retained_and_gradients_that_accumulate() -> None:
    stock, ours, _ = pair()
    for model in (stock, ours):
        loss = model(batch()).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        model(batch() + 1).square().sum().backward()
    assert_same(ours, stock)
    loss = ours(batch()).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_frozen_parts() -> None:
    made = net(layers=3)
    made[0].requires_grad_(False)
    made[1].up.requires_grad_(False)
    stock, ours, _ = pair(made)
    steps((stock, ours))
    assert_same(ours, stock)
    for place, wanted in ((..., True), (2, False)):  # thawed after the first step, and frozen again
        for model in (stock, ours):
            (model if place is ... else model[place]).requires_grad_(wanted)
        steps((stock, ours))
        assert_same(ours, stock)


def test_tied_weights() -> None:
    made = net()
    made[1].up.weight = made[0].up.weight
    made[1].down = made[0].down
    stock, ours, _ = pair(made)
    steps((stock, ours))
    assert_same(ours, stock)


def test_parts_exchanged_after_the_first_step() -> None:
    stock, ours, _ = pair()
    steps((stock, ours))
    for model in (stock, ours):
        torch.manual_seed(5)
        model[0].up, model[0].down = nn.Linear(64, 96), nn.Linear(96, 64)
        model[1].down.weight = nn.Parameter(torch.randn(64, 128))
    steps((stock, ours))
    assert_same(ours, stock)


def test_optimizers_steps() -> None:
    stock, ours, _ = pair()
    for model in (stock, ours):
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            model(batch()).square().mean().backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), stock.parameters(), strict=True))


@pytest.mark.skipif(private.release() < (2, 11), reason="torch itself raises where two threads capture at once")
def test_several_threads() -> None:
    stock, ours, _ = pair()
    steps((stock,))

    def work(_: int) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss_of(ours), list(ours.parameters()))

    with ThreadPoolExecutor(3) as threads:
        for result in threads.map(work, range(3)):
            assert all(torch.equal(a, b) for a, b in zip(result, gradients(stock), strict=True))


def test_in_place_operations() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            x.add_(1)
            hidden = self.first(x).relu_()
            made: Tensor = self.second(hidden) + x
            return made

    stock, ours, _ = pair(nn.Sequential(InPlace(), InPlace()))
    inputs = []
    for model in (stock, ours):
        inputs.append(batch())
        for _ in range(2):
            model(inputs[-1]).square().sum().backward()
    assert_same(ours, stock)
    assert torch.equal(*inputs)
    assert ours[1].calls == stock[1].calls == 2


def test_batch_norms_statistics() -> None:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())

    stock, ours, _ = pair(nn.Sequential(block(), block()))
    steps((stock, ours), count=2)
    assert_same(ours, stock)
    assert all(torch.equal(a, b) for a, b in zip(ours.buffers(), stock.buffers(), strict=True))


def test_what_has_no_forward_is_refused_but_for_its_blocks() -> None:
    with pytest.raises(KernelError, match="model must have a forward, or repeated blocks that have one, got ModuleL"):
        compress(nn.ModuleList([nn.Linear(64, 64)]))
    assert compress(nn.ModuleList(net())).names == ("0", "1")
