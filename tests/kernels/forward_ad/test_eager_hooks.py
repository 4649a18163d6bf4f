"""Hooks on tensors and modules around chains: they run as before, or KernelError says that they cannot."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kernels import KernelError
from tests.kernels.forward_ad.chains import Activation, mish
from tests.kernels.forward_ad.eager import assert_same, leaves, mode
from tests.kernels.forward_ad.programs import Doubled


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_module_hooks() -> None:
    seen: list[str] = []

    def program(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
        block = nn.Sequential(nn.Identity(), nn.Identity())
        block[0].register_forward_hook(lambda module, args, output: a(output))
        for module in (block, block[0]):
            module.register_full_backward_hook(lambda module, given, taken: seen.append("after"))
            module.register_full_backward_pre_hook(lambda module, taken: seen.append("before"))
        return (block(a(x @ w)) @ v).sum()

    assert_same(program)
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]
    assert len(seen) == 8


def test_multi_grad_hook() -> None:
    seen: list[Tensor] = []

    def program(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
        y = F.softplus(x @ w)
        z = torch.tanh(y) * y
        torch.autograd.graph.register_multi_grad_hook(
            [y, z], lambda gradients: seen.extend(gradient.clone() for gradient in gradients)
        )
        return (z @ v).sum()

    assert_same(program)
    assert len(seen) == 4
    assert torch.allclose(seen[0], seen[2])
    assert torch.allclose(seen[1], seen[3])


@pytest.mark.parametrize("late", ["hook", "gradient", "backward", "retain"])
def test_a_tensor_within_a_chain_that_is_watched_too_late(late: str) -> None:
    """Its gradient no longer passes through it: KernelError says so."""
    x, w, v = leaves()
    with mode():
        h = x @ w
        y = F.softplus(h)
        loss = ((h * torch.tanh(y)) @ v).sum()
        watch: dict[str, Callable[[], Any]] = {
            "hook": lambda: y.register_hook(lambda gradient: gradient),
            "gradient": lambda: torch.autograd.grad(loss, [y]),
            "backward": lambda: loss.backward(inputs=[y]),
            "retain": y.retain_grad,
        }
        with pytest.raises(KernelError, match=r"must be asked for before the chain's output is used"):
            watch[late]()
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        torch.autograd.grad(loss, [y])


# Uses of a tensor that the mode does not see, or that do not continue its chain.
UNSEEN: dict[str, Activation] = {
    "function": lambda y: Doubled.apply(y),
    "reentrant checkpoint": lambda y: checkpoint(torch.square, y, use_reentrant=True),
    "vmap": lambda y: torch.func.vmap(torch.square)(y),
    "complex": lambda y: (y * 1j).abs(),
    "broadcast": lambda y: y[:, :1].mul(1.0) * torch.ones(1, 16, dtype=y.dtype),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_a_hook_after_a_use_that_was_not_seen(name: str) -> None:
    """The hook sees the whole gradient, or KernelError says that it would not."""

    def gradient(context: AbstractContextManager[object]) -> Tensor:
        x, w, v = leaves()
        with context:
            y = mish(x @ w)
            used = UNSEEN[name](y).sum() + (y @ v).sum()
            y.register_hook(lambda gradient: gradient * 2)
            used.backward()
        assert x.grad is not None
        return x.grad

    plain = gradient(nullcontext())
    try:
        nested = gradient(mode())
    except KernelError as error:
        if "must be asked for before" not in str(error):
            raise
    else:
        assert torch.allclose(nested, plain, rtol=1e-12)
