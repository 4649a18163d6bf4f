"""Nested forward AD in eager code: the exact bytes saved."""

import pytest
import torch
from torch import Tensor, nn

from kernels import convert, saved_bytes
from kernels.forward_ad import nested_forward_ad, wrap
from kernels.forward_ad.chains import record_of
from tests.kernels.forward_ad.chains import WRITTEN, Activation, mish, newgelu
from tests.kernels.forward_ad.eager import CHANNELS, ROWS, WIDTH, Block, assert_same, batch, mode


@pytest.mark.parametrize("convolutional", [False, True], ids=["linear", "convolutional"])
@pytest.mark.parametrize("name", WRITTEN)
def test_bytes_kept(name: str, convolutional: bool) -> None:
    """A norm saves its input, too, and two numbers a channel."""
    function, plain, nested = WRITTEN[name]
    block, x = Block(function, convolutional), batch(convolutional)
    unit = x.numel() * x.element_size()
    besides = (unit + 2 * CHANNELS * x.element_size()) * convolutional
    assert saved_bytes(block, x).total == plain * unit + besides
    assert saved_bytes(wrap(block, min_numel=1), x).total == nested * unit + besides
    assert saved_bytes(block, x, fake=False).total == nested * unit + besides


def test_a_chain_with_several_ends_keeps_a_derivative_each() -> None:
    """R^1 to R^M: both results of the chain are operands of products, which save them anyway."""

    def forward(x: Tensor, weight: Tensor) -> Tensor:
        h = x @ weight
        inner = mish(newgelu(h))
        outer = torch.sin(inner) * torch.exp(-inner * inner)
        return (outer @ weight + inner @ weight).sum()

    x, weight = torch.randn(ROWS, WIDTH, requires_grad=True), torch.randn(WIDTH, WIDTH, requires_grad=True)
    with nested_forward_ad(min_numel=1):
        kept = saved_bytes(forward, x, weight)
    assert kept.total == 4 * x.numel() * x.element_size()


def test_nested_modes() -> None:
    """The inner mode works; the outer one sees only the operations."""
    x, block = batch(), Block(newgelu)
    with mode():
        assert saved_bytes(wrap(block, min_numel=1), x, fake=False).total == 2 * x.numel() * 4

    def program(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
        with mode():
            return (a(x @ w) @ v).sum() + (a(x) @ w).sum()

    assert_same(program)


def test_graphs_die() -> None:
    """There are no reference cycles: without the result, all memory is freed at once."""
    import gc
    import weakref

    gc.collect()
    gc.disable()
    try:
        block = wrap(Block(newgelu), min_numel=1)
        x = batch()
        y = block(x)
        node = y.grad_fn
        assert node is not None
        inner = node.next_functions[1][0]
        assert inner is not None
        assert "Chain" in inner.name()
        reference = weakref.ref(inner)
        del node, inner, y
        assert reference() is None
    finally:
        gc.enable()


def test_small_tensors_are_left_alone() -> None:
    x = batch()
    assert saved_bytes(wrap(Block(newgelu), min_numel=x.numel()), x).total == 2 * x.numel() * 4
    assert saved_bytes(wrap(Block(newgelu), min_numel=x.numel() + 1), x).total == 5 * x.numel() * 4


def test_the_mode_decorates() -> None:
    calls = []

    @nested_forward_ad(min_numel=1)
    def forward(block: nn.Module, x: Tensor, depth: int = 2) -> Tensor:
        calls.append(torch.overrides._get_current_function_mode())
        return forward(block, x, depth - 1) if depth else block(x)

    x = batch()
    assert saved_bytes(forward, Block(newgelu), x).total == 2 * x.numel() * 4
    assert all(isinstance(call, nested_forward_ad) for call in calls)
    assert torch.overrides._get_current_function_mode() is None


def test_a_long_chain_costs_what_its_operations_do() -> None:
    """No operation copies the records of those before it."""
    with mode():
        h = torch.randn(4, 4, requires_grad=True) * 1.0
        for _ in range(100):
            h = h + 0.01 * torch.tanh(h)
    last = record_of(h)  # within the mode, reading grad_fn would end the chain
    assert last is not None
    assert max(len(record.saved) for record in [last, *last.before]) <= 2
    assert len(last.before) == 3 * 100


def test_two_modes_and_a_converted_model_keep_as_little_as_one() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return newgelu(x) * 1.5

    x = batch()
    block = Block(Own())
    assert convert(block, "forward-ad").converted
    assert saved_bytes(wrap(block, min_numel=1), x).total == 2 * x.numel() * 4
