"""The autograd.Functions of element-wise functions: of all activations, and of those that users write."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import actfit.kernels.engine.ops  # noqa: F401 - registers the ops
from actfit.kernels import private
from actfit.kernels.engine import traced
from actfit.kernels.errors import KernelError
from actfit.kernels.methods.forward_derivative import ForwardDerivative
from actfit.kernels.methods.method import spec_of

_CHANGED = (
    "the output of an activation with method={method!r} was changed in place, and backward needs it; write"
    " out = out + other instead of out += other, or use method='fewbit', which does not need the output"
)
_TWICE = (
    "what actfit computes must be differentiated once only; for gradients of gradients use method='stock', call"
    " remove() of a model's handle, or take the function itself in place of elementwise"
)


class Elementwise(torch.autograd.Function):
    """y = f(x), its dimensions in `order`; saves for backward what the kernel's method says, and nothing else.

    `passes` is a module with `forward` and `backward`: the ops, or `actfit.kernels.engine.traced` for a compiler; one
    cannot read what the other saved. The last output, without elements, is an anchor that connects the gradient to x
    for `once_differentiable`.
    """

    @staticmethod
    def forward(
        x: Tensor, kernel: str, params: Sequence[float], order: Sequence[int], passes: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, saved = passes.forward(x, kernel, params, order)
        return y, saved, x.new_empty(0)

    @staticmethod
    def saved_by(x: Tensor, kernel: str, *_: Any) -> str:
        """What reports of memory call it; takes forward's arguments."""
        spec = spec_of(kernel)
        return f"{spec.function.name}, {spec.method.name}"

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        _, ctx.kernel, ctx.params, ctx.order, ctx.passes = inputs
        y, saved, anchor = output
        ctx.mark_non_differentiable(saved)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(anchor, saved, *([y] if spec_of(ctx.kernel).storage.keeps_output else []))

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, None, None, None, None]:
        if grad is None:
            return None, None, None, None, None
        anchor, saved, *y = _saved(ctx)
        dx = ctx.passes.backward(grad.contiguous(), y[0] if y else None, saved, ctx.kernel, ctx.params)
        return once_differentiable(_in_original_order(dx, ctx.order), anchor), None, None, None, None


class Fused(torch.autograd.Function):
    """All results of an emitted function; saves its derivatives, and nothing else.

    The last output has no elements, as in `Elementwise`.
    """

    @staticmethod
    def forward(x: Tensor, key: str) -> tuple[Tensor, ...]:
        return *torch.ops.actfit.fused_forward(x, key, True), x.new_empty(0)

    @staticmethod
    def saved_by(x: Tensor, key: str) -> str:
        return f"{key.rpartition('-')[0]}, {ForwardDerivative.name}"

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, str], output: tuple[Tensor, ...]) -> None:
        *made, anchor = output
        derivatives = made[len(made) // 2 :]
        ctx.mark_non_differentiable(*derivatives)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(anchor, *derivatives)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None]:
        anchor, *derivatives = ctx.saved_tensors
        pairs = [
            (grad.contiguous(), derivative)
            for grad, derivative in zip(grads, derivatives, strict=False)
            if grad is not None
        ]
        if not pairs:
            return None, None
        given, kept = zip(*pairs, strict=True)
        return once_differentiable(torch.ops.actfit.fused_backward(list(given), list(kept)), anchor), None


class _Once(torch.autograd.Function):
    """Refuses to differentiate a gradient: its own gradient would lack the part through the saved derivative."""

    @staticmethod
    def forward(gradient: Tensor, error: str, *anchors: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.error = inputs[1]

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> None:
        raise KernelError(ctx.error)


def once_differentiable(gradient: Tensor, *anchors: Tensor, error: str = _TWICE) -> Tensor:
    """`gradient`, connected to x by anchors that depend on x; differentiating it raises KernelError."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return gradient
    refusing: Tensor = _Once.apply(gradient, error, *anchors)
    return refusing


def _saved(ctx: Any) -> tuple[Tensor, ...]:
    if torch.compiler.is_compiling():
        return tuple(ctx.saved_tensors)
    try:
        return tuple(ctx.saved_tensors)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        hint = _CHANGED.format(method=spec_of(ctx.kernel).method.name)
        raise RuntimeError(f"{error}\nactfit: {hint}") from None


def elementwise(x: Tensor, kernel: str, params: Sequence[float]) -> Tensor:
    """f(x) for x of any strides, in the memory layout of x; differentiable once."""
    order = _memory_order(x)
    passes = traced if is_compiling() and traced.traceable(kernel, x.dtype) else torch.ops.actfit
    return _in_original_order(Elementwise.apply(x, kernel, list(params), order, passes)[0], order)


def is_compiling() -> bool:
    """Whether a graph is being traced: up to torch 2.12, torch.compiler knows this only while Dynamo runs."""
    return torch.compiler.is_compiling() or private.TracingContext.try_get() is not None


def in_memory_order(run: Callable[..., Sequence[Tensor]], *tensors: Tensor) -> tuple[Tensor, ...]:
    """The results of `run` with contiguous tensors, in the memory layout of the first."""
    order = _memory_order(tensors[0])
    rows = (tensor.permute(order) if order else tensor for tensor in tensors)
    return tuple(_in_original_order(result, order) for result in run(*(row.contiguous() for row in rows)))


def _memory_order(x: Tensor) -> list[int]:
    """The dimensions sorted by stride, largest first: permuted so, x or a copy with its layout is contiguous.

    Empty if x is contiguous, and if elements share memory.
    """
    if x.is_contiguous() or 0 in x.stride():
        return []
    return sorted(range(x.dim()), key=x.stride, reverse=True)


def _in_original_order(result: Tensor, order: Sequence[int]) -> Tensor:
    """`result`, whose dimensions are in `order`, with its dimensions in their original order."""
    return result.permute([list(order).index(dim) for dim in range(result.dim())]) if order else result
