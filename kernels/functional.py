"""Activation functions with torch's own signatures, which save less for backward.

Besides torch's arguments each takes, by keyword:

method
    "invact" (the default), "fewbit", "forward-ad", "invact-precision-bit" or "stock".
bits
    Of a few-bit table, 1 to 8 (default: 3). Of invact besides the output, 1 (the default) or 2, which is for tensors of
    float16 and bfloat16.
coefficients
    A few-bit table of the user's own: the path of a file.

A tensor of float32, float16, bfloat16 or float64, of any shape and strides, gives one of the same shape, dtype and
memory layout; so does its gradient. The stock function runs where no gradient is needed, in an export, and under
torch.func transforms. All raise KernelError for unsupported arguments, with the reason.
"""

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any, ParamSpec, Protocol, TypedDict, Unpack

import torch.fx
from torch import Tensor

from actfit.kernels.activation import Path, activation
from actfit.kernels.errors import KernelError, shown
from actfit.kernels.methods.registry import DEFAULT
from actfit.kernels.validate import number

P = ParamSpec("P")
torch.fx.wrap("activation")  # in a traced graph it stays one call


class TableOptions(TypedDict, total=False):
    """Options that select a few-bit table."""

    bits: int | None
    coefficients: Path | None


class Options(TableOptions, total=False):
    """Keyword arguments of all functions besides torch's own."""

    method: str


def _shows_options(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Show **options as single arguments in the function's signature, for `help`."""
    signature = inspect.signature(function)
    *parameters, _ = signature.parameters.values()
    defaults: dict[str, tuple[Any, Any]] = {
        "method": (DEFAULT, str),
        "bits": (None, int | None),
        "coefficients": (None, Path | None),
    }
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (default, kind) in defaults.items()
    ]
    shown = signature.replace(parameters=[*parameters, *options])
    function.__signature__ = shown  # type: ignore[attr-defined]
    return function


class Plain(Protocol):
    """A function without arguments of its own besides the tensor."""

    def __call__(self, input: Tensor, **options: Unpack[Options]) -> Tensor:
        """f(input), in its shape, dtype and memory layout."""


def _plain(name: str, doc: str = "") -> Plain:
    @_shows_options
    def function(input: Tensor, **options: Unpack[Options]) -> Tensor:
        return activation(name, input, **options)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc or f"`torch.nn.functional.{name}`."
    return function


relu = _plain("relu")
relu6 = _plain("relu6")
relu2 = _plain("relu2", "max(x, 0)².")
selu = _plain("selu")
hardsigmoid = _plain("hardsigmoid")
hardswish = _plain("hardswish")
sigmoid = _plain("sigmoid")
logsigmoid = _plain("logsigmoid")
softsign = _plain("softsign")
tanh = _plain("tanh")
tanhshrink = _plain("tanhshrink")
silu = _plain("silu")
quick_gelu = _plain("quick_gelu", "x·sigmoid(1.702 x).")
mish = _plain("mish")


@_shows_options
def leaky_relu(input: Tensor, negative_slope: float = 0.01, **options: Unpack[Options]) -> Tensor:
    """`torch.nn.functional.leaky_relu`."""
    return activation("leaky_relu", input, negative_slope=negative_slope, **options)


@_shows_options
def threshold(input: Tensor, threshold: float, value: float, **options: Unpack[Options]) -> Tensor:
    """`torch.nn.functional.threshold`."""
    return activation("threshold", input, threshold=threshold, value=value, **options)


@_shows_options
def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, **options: Unpack[Options]) -> Tensor:
    """`torch.nn.functional.hardtanh`."""
    return activation("hardtanh", input, min_val=min_val, max_val=max_val, **options)


@_shows_options
def hardshrink(input: Tensor, lambd: float = 0.5, **options: Unpack[Options]) -> Tensor:
    """`torch.nn.functional.hardshrink`."""
    return activation("hardshrink", input, lambd=lambd, **options)


@_shows_options
def softshrink(input: Tensor, lambd: float = 0.5, **options: Unpack[Options]) -> Tensor:
    """`torch.nn.functional.softshrink`."""
    return activation("softshrink", input, lambd=lambd, **options)


@_shows_options
def elu(input: Tensor, alpha: float = 1.0, **options: Unpack[Options]) -> Tensor:
    """`torch.nn.functional.elu`."""
    return activation("elu", input, alpha=alpha, **options)


@_shows_options
def celu(input: Tensor, alpha: float = 1.0, **options: Unpack[Options]) -> Tensor:
    """`torch.nn.functional.celu`."""
    return activation("celu", input, alpha=alpha, **options)


@_shows_options
def gelu(input: Tensor, approximate: str = "none", **options: Unpack[Options]) -> Tensor:
    """`torch.nn.functional.gelu`; approximate is "none" or "tanh"."""
    return activation(gelu_name(approximate), input, **options)


@_shows_options
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0, **options: Unpack[Options]) -> Tensor:
    """`torch.nn.functional.softplus`; its threshold must be 20 or more, where it changes nothing."""
    check_threshold(threshold)
    return activation("softplus", input, beta=beta, **options)


def gelu_name(approximate: str) -> str:
    """The catalogue's name of gelu, approximate or not; raises KernelError for another word than "none" and "tanh"."""
    if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
        raise KernelError(f"approximate must be 'none' or 'tanh', got {shown(approximate)}")
    return "gelu" if approximate == "none" else "gelu_tanh"


def check_threshold(threshold: float) -> None:
    """Raise KernelError for a threshold of softplus that changes its values."""
    if not (value := number("threshold", threshold)) >= 20:
        raise KernelError(f"threshold must be at least 20, where it changes no digit of float32, got {value:g}")
