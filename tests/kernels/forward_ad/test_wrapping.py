"""Modules wrapped in nested forward AD: compiled, exported, copied, in threads; what cannot be wrapped."""

import copy
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernels import KernelError
from kernels.forward_ad import nested_forward_ad, unwrap, wrap
from tests.kernels.forward_ad.chains import mish
from tests.kernels.forward_ad.eager import ROWS, WIDTH, Block, leaves, mode


def test_compiled_around() -> None:
    """Under torch.compile the mode does nothing: the compiler sees the chains itself."""
    torch._dynamo.reset()
    block = wrap(Block(mish).double(), min_numel=1)
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    (plain,) = torch.autograd.grad(block(x).sum(), x)
    (nested,) = torch.autograd.grad(compiled(x).sum(), x)
    assert torch.allclose(plain, nested, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning", "ignore:`torch.jit")
def test_exported_and_traced() -> None:
    """The graph has no node of nested forward AD."""
    block, x = wrap(Block(mish), min_numel=1), torch.randn(ROWS, WIDTH)
    expected = block(x)
    for program in (torch.export.export(block, (x,)).module(), torch.jit.trace(block, x)):
        assert torch.allclose(program(x), expected)


def test_an_exception_leaves_nothing_behind() -> None:
    x, w, _ = leaves()
    block = wrap(Block(lambda x: x.no_such_method()), min_numel=1)
    with pytest.raises(AttributeError):
        block(torch.randn(2, WIDTH))
    kept: list[Tensor] = []

    def stopped() -> None:
        with mode():
            kept.append(torch.tanh(x @ w))
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        stopped()
    y = kept[0]
    assert torch.overrides._get_current_function_mode() is None
    (gradient,) = torch.autograd.grad((torch.exp(y) * y).sum(), x)  # the chain continues outside the mode
    x, w, _ = leaves()
    y = torch.tanh(x @ w)
    assert torch.allclose(gradient, torch.autograd.grad((torch.exp(y) * y).sum(), x)[0], rtol=1e-12)


def test_threads() -> None:
    """Each thread has its own modes; a wrapped module runs in all of them at once."""
    block = wrap(Block(mish).double(), min_numel=1)
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    gradients: list[Tensor] = []

    def work() -> None:
        for _ in range(20):
            gradients.append(torch.autograd.grad(block(x).sum(), x)[0])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (plain,) = torch.autograd.grad(unwrap(block)(x).sum(), x)
    assert len(gradients) == 80
    assert all(torch.allclose(gradient, plain, rtol=1e-12) for gradient in gradients)


def test_a_wrapped_model_is_copied_saved_and_unwrapped() -> None:
    block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Mish(), nn.Linear(WIDTH, WIDTH))
    names = list(block.state_dict())
    wrap(block, min_numel=1)
    x = torch.randn(ROWS, WIDTH)
    y = block(x)
    y.sum().backward()
    stream = io.BytesIO()
    torch.save(block, stream)
    stream.seek(0)
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block)), torch.load(stream, weights_only=False)):
        assert list(other.state_dict()) == names
        assert torch.equal(other(x), y)
        assert vars(other)["forward"].module is other
    assert "forward" not in vars(unwrap(block))
    with pytest.raises(KernelError, match="must be one that is wrapped"):
        unwrap(block)


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "1"])
def test_min_numel(wrong: Any) -> None:
    with pytest.raises(KernelError, match=r"min_numel must be a whole number of 0 or more, got"):
        nested_forward_ad(min_numel=wrong)
    with pytest.raises(KernelError, match=r"min_numel must be"):
        wrap(nn.Linear(2, 2), min_numel=wrong)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: wrap(nn.Linear(2, 2)), "must not be wrapped already"),
        (lambda: mish, r"must be a torch.nn.Module .*, got function"),
        (lambda: nn.ModuleList([nn.Linear(2, 2)]), "must have a forward, got ModuleList"),
        (lambda: nn.DataParallel(nn.Linear(2, 2)), "must be wrapped before others wrap it, got DataParallel"),
        (lambda: torch.compile(nn.Linear(2, 2)), "must be wrapped before others wrap it, got OptimizedModule"),
    ],
)
def test_what_cannot_be_wrapped(model: Callable[[], Any], message: str) -> None:
    with pytest.raises(KernelError, match=f"^model {message}"):
        wrap(model())
