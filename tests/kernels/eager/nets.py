"""Nets written as functions, their gradients, and codes that are exact."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from kernels import convert


class ExactCode:
    """In the place of a code: the tensor itself, as it is now."""

    def __init__(self, flat: Tensor, method: Any, group: int = 64, drawn: Any = None) -> None:
        self.kept = [flat.clone()]

    def hand_over(self) -> list[Tensor]:
        return self.kept

    def decode(self, tensors: list[Tensor]) -> Tensor:
        return tensors[0].clone()


class Net(nn.Module):
    """Calls a function with itself, or with its one linear layer's result where it is one `of_activations`."""

    def __init__(self, function: Callable[..., Any], *layers: nn.Module, **buffers: Tensor) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def __getitem__(self, place: int) -> nn.Module:
        return self.layers[place]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def of_activations(function: Callable[[Tensor], Any], saved: bool = False) -> Net:
    """A net that takes a function of activations [16, 64]; saved: they are saved before that, too."""

    def forward(net: Net, x: Tensor) -> Any:
        h = net[0](x)
        before = F.gelu(h).sum() if saved else 0.0
        return function(h), before

    return Net(forward, nn.Linear(32, 64))


def block(width: int = 32) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, width), nn.ReLU(inplace=True)
    )


def loss_of(output: Any) -> Tensor:
    """A sum of all that can have a gradient, with weights that are always the same."""
    generator = torch.Generator().manual_seed(5)
    outputs = [tensor for tensor in tree_leaves(output) if isinstance(tensor, Tensor) and tensor.requires_grad]
    real = [torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor for tensor in outputs]
    return sum(
        ((tensor.double() * torch.randn(tensor.shape, generator=generator)).sum() for tensor in real), torch.zeros(())
    )


def gradients(model: nn.Module, *inputs: Any, call: Callable[..., Any] | None = None) -> tuple[Any, list[Any]]:
    """What it gives, and the gradients of its parameters and inputs."""
    torch.manual_seed(1)
    given = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in inputs]
    output = (call or model)(*given)
    loss_of(output).backward()
    return output, [tensor.grad for tensor in [*model.parameters(), *given] if tensor.requires_grad]


def converted(model: nn.Module, **options: Any) -> nn.Module:
    """A copy."""
    net = copy.deepcopy(model)
    convert(net, "compress", **options)
    return net


def assert_same(model: nn.Module, *inputs: Any, kernels_differ: bool = False, **options: Any) -> None:
    """The converted model gives what the model gives, gradients too, and leaves the same in its buffers.

    Bit for bit; kernels_differ: decoded slices lie otherwise in memory, and so gradients are sums in another order.
    """
    net, stock = converted(model, **options), copy.deepcopy(model)
    got, expected = gradients(net, *inputs), gradients(stock, *inputs)
    exactly = {"rtol": 0, "atol": 0, "equal_nan": True}
    torch.testing.assert_close(got[0], expected[0], **exactly)
    torch.testing.assert_close(got[1], expected[1], **({} if kernels_differ else exactly))
    torch.testing.assert_close(list(net.buffers()), list(stock.buffers()), **exactly)


def error(got: list[Any], expected: list[Any]) -> float:
    """Of all gradients together, relative."""
    pairs = [
        (gradient.to_dense(), exact.to_dense())
        for gradient, exact in zip(got, expected, strict=True)
        if exact is not None
    ]
    wrong = sum(float((gradient - exact).double().square().sum()) for gradient, exact in pairs)
    return float((wrong / sum(float(exact.double().square().sum()) for _, exact in pairs)) ** 0.5)
