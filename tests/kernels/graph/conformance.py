"""What `compress` must keep of any model: all of it where it is exact, and with bits all but the last digits."""

import copy
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from actfit import compress
from actfit.kernels.engine import ops
from actfit.kernels.methods.expected_error import expected_error

BITS, SMALLEST = 8, 128
# Of a gradient that is made of two coded tensors, whose errors point in the same direction.
MOST = 2 * expected_error(BITS, 64, "nearest")


class Net(nn.Module):
    """A module that calls a function with itself and its arguments."""

    def __init__(self, function: Callable[..., Any], *layers: nn.Module, **buffers: Tensor) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def __getitem__(self, place: int) -> nn.Module:
        return self.layers[place]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


class Outcome(NamedTuple):
    """Results of forward, gradients of parameters and inputs, and buffers."""

    results: list[Tensor]
    gradients: list[Tensor | None]
    buffers: list[Tensor]


Loss = Callable[[Any], Tensor]


def tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def weighted(output: Any) -> Tensor:
    """A sum of all elements of an output that have gradients, each by a weight of its own."""
    generator = torch.Generator().manual_seed(5)
    total = torch.zeros((), dtype=torch.float64)
    for each in tensors(output):
        if each.requires_grad:
            real = torch.view_as_real(each.resolve_conj()) if each.is_complex() else each
            total = total + (real.double() * torch.randn(real.shape, generator=generator)).sum()
    return total


def outcome(model: nn.Module, *inputs: Any, loss: Loss = weighted, within: Any = None) -> Outcome:
    """Of a step with random numbers from the same seed each time."""
    torch.manual_seed(1)
    given = [x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in inputs]
    with within or nullcontext():
        output = model(*given)
    loss(output).backward()
    leaves = [leaf for leaf in (*model.parameters(), *tensors(given)) if leaf.requires_grad]
    gradients = [None if leaf.grad is None else leaf.grad.to_dense().clone() for leaf in leaves]
    return Outcome([x.detach().clone() for x in tensors(output)], gradients, [x.clone() for x in model.buffers()])


def equal(some: Iterable[Tensor | None], others: Iterable[Tensor | None]) -> bool:
    """Whether tensors are the same, bit for bit, but that one NaN is as good as another; and the same are missing."""
    for a, b in zip(some, others, strict=True):
        if a is None or b is None:
            if a is not b:
                return False
        elif a.dtype != b.dtype or not torch.equal(a.nan_to_num(), b.nan_to_num()):
            return False
    return True


def error(got: Outcome, exact: Outcome) -> float:
    """The relative error of all gradients together; of zeros, the absolute one."""
    pairs = [(a, b) for a, b in zip(got.gradients, exact.gradients, strict=True) if a is not None and b is not None]
    apart, whole = (
        sum(float(x.abs().double().square().sum()) for x in parts)
        for parts in ([a - b for a, b in pairs], [b for _, b in pairs])
    )
    return (apart / (whole or 1.0)) ** 0.5


def plain_hook(model: nn.Module, bits: int, smallest: int, group: int = 64) -> Any:
    """Saved-tensor hooks that code each floating-point tensor but parameters, whatever it is for."""
    kept = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def pack(x: Tensor) -> Callable[[], Tensor]:
        if not x.is_floating_point() or x.numel() < smallest or x.untyped_storage().data_ptr() in kept:
            return lambda: x
        codes, shape, dtype = ops.encode_groups(x.detach().reshape(-1), None, group, bits), x.shape, x.dtype
        return lambda: ops.decode_groups(*codes, group, shape.numel(), dtype).view(shape)

    return saved_tensors_hooks(pack, lambda made: made())


def assert_kept(
    model: nn.Module, *inputs: Any, loss: Loss = weighted, captured: bool | None = True, most: float = MOST
) -> tuple[nn.Module, nn.Module]:
    """Exact: bit for bit. By 8 bits: forward bit for bit, and gradients at most as wrong as by a plain hook, or `most`.

    Returns
    -------
    tuple[nn.Module, nn.Module]
        The exact model, and that with bits.
    """
    stock, exact, coded = copy.deepcopy(model), copy.deepcopy(model), copy.deepcopy(model)
    expected = outcome(stock, *inputs, loss=loss)
    handles = compress(exact), compress(coded, bits=BITS)
    got = outcome(exact, *inputs, loss=loss)
    assert all(equal(*parts) for parts in zip(got, expected, strict=True)), error(got, expected)
    got = outcome(coded, *inputs, loss=loss)
    assert equal(got.results, expected.results)
    assert equal(got.buffers, expected.buffers)
    assert [x is None for x in got.gradients] == [x is None for x in expected.gradients]
    measured = error(got, expected)
    if measured > most:
        hooked = copy.deepcopy(model)
        hook = plain_hook(hooked, BITS, SMALLEST)
        assert measured <= error(outcome(hooked, *inputs, loss=loss, within=hook), expected)
    for handle in handles:
        assert not handle.stock
        assert captured is None or bool(handle.report.graphs) == captured
    return exact, coded


def cases(names: Iterable[str], quick: Iterable[str]) -> Any:
    """A test for each name; those that are not quick are slow, as together they take minutes."""
    quick = set(quick)
    names = list(names)
    assert quick <= set(names)
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]
    )
