"""Activation functions with torch's own signatures, and how they remember their derivative.

Each takes, by keyword, `method` ("invact", "fewbit", "forward-ad", "invact-precision-bit" or "stock"), and for fewbit
`bits` (1 to 8; default 3) or `coefficients` (a file of one's own). A tensor of float32, float16, bfloat16 or float64,
of any shape and strides, gives one of the same shape, dtype and memory layout; so does its gradient. Where no gradient
is asked for, in an export, and under torch.func's transforms, the stock function runs. All raise KernelError for what
they cannot do, with the reason.
"""

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import TypedDict, Unpack

import torch
import torch.fx
from torch import Tensor

from kernels.autograd import elementwise
from kernels.errors import KernelError, shown
from kernels.methods.registry import DEFAULT
from kernels.parameters import check_range, number
from kernels.stock import STOCK
from kernels.validate import ALIASES, kernel_for, numbers_for

Path = str | PathLike[str]


class Table(TypedDict, total=False):
    """What says which few-bit table."""

    bits: int | None
    coefficients: Path | None


class How(Table, total=False):
    """What all functions take besides torch's own arguments, by keyword."""

    method: str


@torch.compiler.allow_in_graph
def _remembering(
    input: Tensor,
    function: str,
    params: Mapping[str, float],
    method: str,
    bits: int | None,
    coefficients: str | None,
    stock: bool,
) -> Tensor:
    """The checks, then the function.

    torch.compile takes the call as it stands and runs autograd through it: Dynamo, which would trace it, neither takes
    numbers that vary, nor looks after tensors that are kept and then changed in place.
    """
    if input.layout != torch.strided:
        raise KernelError(f"input must be a strided tensor, got {input.layout}; use input.to_dense()")
    params = {name: float(value) if isinstance(value, torch.SymFloat) else value for name, value in params.items()}
    bits = int(bits) if isinstance(bits, torch.SymInt) else bits
    spec, values = kernel_for(function, params, method, bits, coefficients)
    function = ALIASES.get(function, function)
    if spec.method.stock:
        if input.is_floating_point():
            for name, value in zip(spec.function.parameters, values, strict=True):
                check_range(name, value, input.dtype)
        return _stock(function, input, values)
    numbers = numbers_for(spec, values, input.dtype)
    return _stock(function, input, values) if stock else elementwise(input, spec.key, numbers)


@torch.fx.wrap  # in a traced graph it stays one call
def activation(
    function: str,
    input: Tensor,
    *,
    method: str = DEFAULT,
    bits: int | None = None,
    coefficients: Path | None = None,
    **params: float,
) -> Tensor:
    """Any function of the catalogue by its name, with its parameters by keyword."""
    if not isinstance(input, Tensor):
        raise KernelError(f"input must be a tensor, got {type(input).__name__}")
    file = fspath(coefficients) if isinstance(coefficients, PathLike) else coefficients
    return _remembering(input, function, params, method, bits, file, stock_runs(input))


def stock_runs(*inputs: Tensor) -> bool:
    """Whether there is nothing to remember, as no gradient is asked for, or what runs is transformed."""
    return not torch.is_grad_enabled() or not any(one.requires_grad for one in inputs) or transformed()


def exporting() -> bool:
    """Whether torch.export is at work. Not by `torch.compiler.is_exporting`: up to torch 2.12 Dynamo takes that for
    True in any compiled code."""
    return bool(torch.compiler._is_exporting_flag)


def transformed() -> bool:
    """Whether what runs is to be taken down or transformed.

    In an export and a trace the stock function is what others can read; in torch.func's transforms (grad, vmap, jvp)
    it is what they can differentiate as often and whichever way they like.
    """
    if exporting() or torch.jit.is_tracing():
        return True
    if torch.compiler.is_compiling():
        return False
    return bool(torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0)


def _stock(function: str, input: Tensor, params: Sequence[float]) -> Tensor:
    result: Tensor = STOCK[function](input, *params)
    return result


def relu(input: Tensor, **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.relu`."""
    return activation("relu", input, **how)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.leaky_relu`."""
    return activation("leaky_relu", input, negative_slope=negative_slope, **how)


def relu6(input: Tensor, **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.relu6`."""
    return activation("relu6", input, **how)


def threshold(input: Tensor, threshold: float, value: float, **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.threshold`."""
    return activation("threshold", input, threshold=threshold, value=value, **how)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.hardtanh`."""
    return activation("hardtanh", input, min_val=min_val, max_val=max_val, **how)


def hardsigmoid(input: Tensor, **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.hardsigmoid`."""
    return activation("hardsigmoid", input, **how)


def hardshrink(input: Tensor, lambd: float = 0.5, **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.hardshrink`."""
    return activation("hardshrink", input, lambd=lambd, **how)


def softshrink(input: Tensor, lambd: float = 0.5, **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.softshrink`."""
    return activation("softshrink", input, lambd=lambd, **how)


def relu2(input: Tensor, **how: Unpack[How]) -> Tensor:
    """max(x, 0)²."""
    return activation("relu2", input, **how)


def hardswish(input: Tensor, **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.hardswish`."""
    return activation("hardswish", input, **how)


def sigmoid(input: Tensor, **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.sigmoid`."""
    return activation("sigmoid", input, **how)


def tanh(input: Tensor, **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.tanh`."""
    return activation("tanh", input, **how)


def softsign(input: Tensor, **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.softsign`."""
    return activation("softsign", input, **how)


def logsigmoid(input: Tensor, **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.logsigmoid`."""
    return activation("logsigmoid", input, **how)


def tanhshrink(input: Tensor, **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.tanhshrink`."""
    return activation("tanhshrink", input, **how)


def elu(input: Tensor, alpha: float = 1.0, **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.elu`."""
    return activation("elu", input, alpha=alpha, **how)


def celu(input: Tensor, alpha: float = 1.0, **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.celu`."""
    return activation("celu", input, alpha=alpha, **how)


def selu(input: Tensor, **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.selu`."""
    return activation("selu", input, **how)


def quick_gelu(input: Tensor, **how: Unpack[How]) -> Tensor:
    """x·sigmoid(1.702 x)."""
    return activation("quick_gelu", input, **how)


def silu(input: Tensor, **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.silu`."""
    return activation("silu", input, **how)


def mish(input: Tensor, **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.mish`."""
    return activation("mish", input, **how)


def gelu(input: Tensor, approximate: str = "none", **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.gelu`; approximate is "none" or "tanh"."""
    return activation(gelu_name(approximate), input, **how)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0, **how: Unpack[How]) -> Tensor:
    """`torch.nn.functional.softplus`; its threshold must be so high that it changes nothing: 20 or more."""
    check_threshold(threshold)
    return activation("softplus", input, beta=beta, **how)


def gelu_name(approximate: str) -> str:
    """The catalogue's name of gelu, approximate or not. Raises KernelError for another word."""
    if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
        raise KernelError(f"approximate must be 'none' or 'tanh', got {shown(approximate)}")
    return "gelu" if approximate == "none" else "gelu_tanh"


def check_threshold(threshold: float) -> None:
    """Raise KernelError for a threshold of softplus that changes what it gives."""
    if not (value := number("threshold", threshold)) >= 20:
        raise KernelError(f"threshold must be at least 20, where it changes no digit of float32, got {value:g}")
