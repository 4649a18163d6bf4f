"""Gated activations f(a) * b. What they save for backward, counted in tensors of the size of a:

    method                    saves                                  besides what the next layer saves of f(a)*b
    stock (f(a) * b)          a, f(a), b                             3
    exact                     a, b; f(a) and f'(a) are computed anew 2
    invact, fewbit            f(a), b and the bits of f'(a)          2 + bits/(bits of the dtype)
    forward-ad                f'(a), f(a), b                         3

So "exact" is the default: no approximation reduces this further, since nothing else saves f(a).
"""

from typing import Any, Unpack

import torch
from torch import Tensor

import actfit.kernels.engine.ops  # noqa: F401 - registers the ops
from actfit.kernels.activation import activation
from actfit.kernels.autograd import in_memory_order, is_compiling, once_differentiable
from actfit.kernels.engine import traced
from actfit.kernels.errors import KernelError
from actfit.kernels.functional import TableOptions
from actfit.kernels.methods.registry import ELEMENTWISE, make
from actfit.kernels.methods.stock import Exact, Stock
from actfit.kernels.stock import STOCK, stock_runs
from actfit.kernels.validate import check_tensor


class Gated(torch.autograd.Function):
    """h = f(a) * b; saves a and b. `passes` as for `actfit.kernels.autograd.Elementwise`."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, function: str, passes: Any) -> Tensor:
        h: Tensor = passes.gated(a, b, function)
        return h

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, str, Any], output: Tensor) -> None:
        a, b, ctx.function, ctx.passes = inputs
        ctx.save_for_backward(a, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        a, b = ctx.saved_tensors
        da, db = ctx.passes.gated_backward(grad.contiguous(), a, b, ctx.function)
        return once_differentiable(da, a, b), once_differentiable(db, a, b), None, None


def _gated(function: str, a: Tensor, b: Tensor, method: str, options: TableOptions) -> Tensor:
    check_tensor("a", a)
    check_tensor("b", b)
    if torch.jit.is_tracing():  # a trace has no shapes to compare
        return STOCK[function](a) * b
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        raise KernelError(
            f"a and b must agree in shape, dtype and device, got {tuple(a.shape)} {a.dtype} on {a.device}"
            f" and {tuple(b.shape)} {b.dtype} on {b.device}"
        )
    if unknown := set(options) - {"bits", "coefficients"}:
        names = ", ".join(sorted(unknown))
        raise KernelError(f"a gated activation must be given a, b, method, bits or coefficients, got {names}")
    made = make(method, {Exact.name: Exact, Stock.name: Stock, **ELEMENTWISE}, **options)
    if not isinstance(made, Exact):
        return activation(function, a, method=method, **options) * b
    if stock_runs(a, b):
        return STOCK[function](a) * b
    return _exact(a, b, function)


@torch.compiler.allow_in_graph  # see `actfit.kernels.activation._apply`
def _exact(a: Tensor, b: Tensor, function: str) -> Tensor:
    passes = traced if is_compiling() else torch.ops.actfit
    return in_memory_order(lambda *rows: [Gated.apply(*rows, function, passes)], a, b)[0]


def swiglu(a: Tensor, b: Tensor, method: str = Exact.name, **options: Unpack[TableOptions]) -> Tensor:
    """silu(a) * b.

    Parameters
    ----------
    a, b
        Two tensors of the same shape, dtype and device.
    method
        "exact" (the default), "stock", or a method of `actfit.functional`.
    **options
        bits and coefficients, as functions of `actfit.functional` take them.

    Raises
    ------
    KernelError
        For invalid arguments, with the reason.
    """
    return _gated("silu", a, b, method, options)


def geglu(a: Tensor, b: Tensor, method: str = Exact.name, **options: Unpack[TableOptions]) -> Tensor:
    """gelu(a) * b, as `swiglu`."""
    return _gated("gelu", a, b, method, options)


def reglu(a: Tensor, b: Tensor, method: str = Exact.name, **options: Unpack[TableOptions]) -> Tensor:
    """relu(a) * b, as `swiglu`."""
    return _gated("relu", a, b, method, options)
