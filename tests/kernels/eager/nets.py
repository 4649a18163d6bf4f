"""Nets written as functions, their gradients, and codes that are exact."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from kernels import convert
from kernels.eager.encoded import Encoded
from kernels.eager.tensors import squares


class ExactCode(Encoded):
    """In place of a code: a copy of the tensor."""

    unit = 1

    def __init__(self, flat: Tensor, method: Any, group: int = 64, drawn: Any = None, inside: Any = None) -> None:
        self._tensors = [flat.clone()]

    def decode(self, tensors: list[Tensor]) -> Tensor:
        return tensors[0].clone()

    def squares(self, decoded: Tensor, exact: Tensor) -> Tensor:
        return squares(decoded, exact)


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


def of_activations(function: Callable[[Tensor], Any], saved: bool = False) -> Net:
    """A net that applies a function to activations [16, 64]; `saved`: another function saves them before."""

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
    """A weighted sum of all outputs that require a gradient; the weights are always the same."""
    generator = torch.Generator().manual_seed(5)
    outputs = [tensor for tensor in tree_leaves(output) if isinstance(tensor, Tensor) and tensor.requires_grad]
    real = [torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor for tensor in outputs]
    return sum(
        ((tensor.double() * torch.randn(tensor.shape, generator=generator)).sum() for tensor in real), torch.zeros(())
    )


def gradients(model: nn.Module, *inputs: Any, call: Callable[..., Any] | None = None) -> tuple[Any, list[Any]]:
    """The output, and the gradients of parameters and inputs."""
    torch.manual_seed(1)
    given = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in inputs]
    output = (call or model)(*given)
    loss_of(output).backward()
    return output, [tensor.grad for tensor in [*model.parameters(), *given] if tensor.requires_grad]


def converted(model: nn.Module, **options: Any) -> nn.Module:
    """A converted copy of a model."""
    net = copy.deepcopy(model)
    convert(net, "compress", **options)
    return net


def assert_same(model: nn.Module, *inputs: Any, kernels_differ: bool = False, **options: Any) -> None:
    """The converted model has the same output, gradients and buffers as the model.

    Bit for bit; kernels_differ: decoded slices have other strides, so that gradients may sum in another order.
    """
    net, stock = converted(model, **options), copy.deepcopy(model)
    got, expected = gradients(net, *inputs), gradients(stock, *inputs)
    exactly = {"rtol": 0, "atol": 0, "equal_nan": True}
    torch.testing.assert_close(got[0], expected[0], **exactly)
    torch.testing.assert_close(got[1], expected[1], **({} if kernels_differ else exactly))
    torch.testing.assert_close(list(net.buffers()), list(stock.buffers()), **exactly)


def error(got: list[Any], expected: list[Any]) -> float:
    """The relative error of all gradients together."""
    pairs = [
        (gradient.to_dense(), exact.to_dense())
        for gradient, exact in zip(got, expected, strict=True)
        if exact is not None
    ]
    wrong = sum(float((gradient - exact).double().square().sum()) for gradient, exact in pairs)
    return float((wrong / sum(float(exact.double().square().sum()) for _, exact in pairs)) ** 0.5)
