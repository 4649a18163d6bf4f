"""Logits that are not made until somebody needs their numbers, which the cross-entropy of them does not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from actfit.kernels import private
from actfit.kernels.errors import KernelError
from actfit.kernels.head.chunked import CrossEntropy, Linear, once, rows_of
from actfit.kernels.head.family import WAY_OUT, Family
from actfit.kernels.head.steps import Step, log_softmax, rows_moved, step_of, turns

# Answered by what is known of logits that are not made.
KNOWN = {
    *("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_leaf", "names", "nbytes", "retains_grad"),
    *("is_cuda", "is_cpu", "is_meta", "is_sparse", "is_quantized", "is_nested", "is_mkldnn", "is_xpu", "is_mps"),
    *("size", "dim", "numel", "nelement", "element_size", "itemsize", "stride", "is_contiguous", "get_device"),
    *("__len__", "_is_view", "_base", "_version", "is_floating_point", "is_complex", "is_same_size", "is_inference"),
}
LOSSES = (F.cross_entropy, F.nll_loss)
GRADIENTS = {"register_hook", "retain_grad"}  # what asks for the gradient of logits


class Logits(Tensor):
    """Stands for logits: the cross-entropy of it is computed in chunks, every other operation gets all logits.

    An operation of single elements with numbers, as a soft cap, one of whole rows, as log_softmax, or one that moves
    them, as a shift, gives Logits again. The tensor is not a leaf: where code below Python's functions reads it, it
    gets all logits, too, and its gradient goes on to what they are made of.
    """

    linear: Linear  # what they are
    family: Family
    make: Callable[[], Tensor]  # as stock would
    _made: Tensor | None

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, _name(function)
        logits = args[0] if args and isinstance(args[0], Logits) else None
        if name == "__hash__" or (name == "register_hook" and _of_fsdp(args[-1])):
            with private.without_torch_function():
                return function(*args, **kwargs)
        if logits is not None and logits._made is None:
            if name in KNOWN or (name == "grad_fn" and logits.family.used):  # measures of what is saved ask for it
                with private.without_torch_function():
                    return function(*args, **kwargs)
            made = _waiting(logits, name, function, args[1:], kwargs) if torch.is_grad_enabled() else None
            if made is not None:
                return made
        if name in GRADIENTS or function is torch.autograd.grad:
            _refuse_if_used((args, kwargs), name)
        return function(*_whole(args, name), **_whole(kwargs, name))

    @classmethod
    def __torch_dispatch__(
        cls, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Operations that come past `__torch_function__`, which have a backward of their own already."""
        for each in _all_of((args, kwargs)):
            each.family.used = True
        given, named = _whole((args, kwargs or {}), str(function), detached=True)
        return function(*given, **named)

    def whole(self, why: str) -> Tensor:
        """All logits, which are kept from now on."""
        if self._made is None:
            self.family.make(why)
        return cast(Tensor, self._made)


def waits(x: Tensor) -> TypeGuard[Logits]:
    """Whether these are logits that take no memory, as nobody has needed their numbers yet."""
    return isinstance(x, Logits) and x._made is None


def deferred(linear: Linear, name: str) -> tuple[Tensor, Family]:
    """Logits that are made when they are needed, at once if they would be one chunk; and what becomes of them."""
    family = Family(name, linear)
    if linear.shape.numel() // linear.shape[-1] <= rows_of(linear.weight):
        return linear.whole(), family
    return _new(linear, family, linear.whole), family


def _new(linear: Linear, family: Family, make: Callable[[], Tensor]) -> "Logits":
    made: Logits = _Deferred.apply(linear.x, linear.weight, linear.bias, linear)
    made.linear, made.family, made.make, made._made = linear, family, make, None
    family.add(made)
    return made


def _waiting(
    logits: Logits, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Tensor | None:
    """The loss in chunks, or Logits again; None if the operation needs all logits."""
    if function in LOSSES:
        loss = _loss_of(logits, function, *args, **kwargs)
        if loss is None:
            return None
        logits.family.check()
        logits.family.used = True
        made = loss.of(_as_autocast(logits.linear))
        return made.view(_places(logits)) if made.dim() else made
    linear = _later(name, function, logits.linear, args, kwargs)
    if linear is None:
        return None
    return _new(linear, logits.family, lambda: function(logits._made, *args, **kwargs))


class _Deferred(torch.autograd.Function):
    """Logits without memory; a gradient that comes to them all the same goes on to x, weight and bias."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, linear: Linear) -> Tensor:
        made: Tensor = private.tensor_without_memory(Logits, linear.shape, linear.dtype, x.device)
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.steps, ctx.turned = inputs[3].steps, inputs[3].turned

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[:3]
        given: list[Any] = [each if each is None else each.detach() for each in ctx.saved_tensors]
        inputs = [each.requires_grad_() for each, need in zip(given, needed, strict=True) if each is not None and need]
        with torch.enable_grad():
            x, weight, bias = given
            made = Linear(x, weight, bias, ctx.steps, ctx.turned).whole()
        made_of = iter(torch.autograd.grad(made, inputs, grad))
        return *once([next(made_of) if need else None for need in needed], ctx.saved_tensors[:2]), None


def _name(function: Callable[..., Any]) -> str:
    """An operation's name; that of an attribute if it reads one."""
    name = getattr(function, "__name__", str(function))
    return str(function.__self__.__name__) if name == "__get__" else name  # type: ignore[attr-defined]


def _of_fsdp(hook: Any) -> bool:
    """Whether a hook is FSDP's, which waits for backward to begin, and hears of that from the loss as well."""
    hook = getattr(hook, "func", hook)  # of a partial
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed.")


def _later(
    name: str, function: Callable[..., Any], linear: Linear, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Linear | None:
    """What is to be made instead, if the operation can wait."""
    dimensions = linear.x.dim()
    step = step_of(name, function, args, kwargs)
    if step is None and (step := log_softmax(name, args, kwargs, -2 if linear.turned else -1, dimensions)):
        made = step(linear.x.new_empty(0, dtype=linear.dtype))  # autocast widens it on some devices
        linear = _as_autocast(linear) if made.dtype == torch.float32 else linear
    if step is not None:
        return replace(linear, steps=(*linear.steps, step))
    if kwargs or linear.turned:
        return None
    if turns(name, args, dimensions):
        return replace(linear, turned=True)
    moved = rows_moved(name, args, linear.x, linear.shape[-1])
    return None if moved is None else replace(linear, x=moved)


def _places(logits: Logits) -> torch.Size:
    """The shape of the targets."""
    return logits.shape[:1] + logits.shape[2:]


def _loss_of(
    logits: Logits,
    function: Callable[..., Tensor],
    target: Any = None,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    **smoothing: float,
) -> CrossEntropy | None:
    """The loss, if it can be computed in chunks: of classes, with constant weights."""
    classes = isinstance(target, Tensor) and not isinstance(target, Logits) and target.dtype == torch.int64
    if not classes or target.shape != _places(logits) or (size_average, reduce) != (None, None):
        return None
    if logits.dim() != 2 and not logits.linear.turned:
        return None
    if reduction not in ("mean", "sum", "none") or (weight is not None and weight.requires_grad):
        return None
    options = {"weight": weight, "ignore_index": ignore_index, **smoothing}
    return CrossEntropy(function, target.flatten(), reduction, options)


def _as_autocast(linear: Linear) -> Linear:
    """Logits as autocast gives them to a loss: in float32."""
    device = linear.x.device.type
    if not torch.is_autocast_enabled(device) or linear.dtype not in (torch.bfloat16, torch.float16):
        return linear
    return replace(linear, steps=(*linear.steps, Step(Tensor.float)))


def _refuse_if_used(value: Any, name: str) -> None:
    """Raise KernelError for what would wait for a gradient that does not come."""
    if any(each.family.used for each in _all_of(value)):
        raise KernelError(
            f"logits must be whole for {name}, got a loss of them computed in chunks; call it before, or {WAY_OUT}"
        )


def _all_of(value: Any) -> list[Logits]:
    """All Logits in arguments."""
    found: list[Logits] = []
    private.tree_map(lambda each: found.append(each) if isinstance(each, Logits) else None, value)
    return found


def _whole(value: Any, why: str, detached: bool = False) -> Any:
    """Arguments with all logits in place of Logits."""

    def whole(each: Any) -> Any:
        if not isinstance(each, Logits):
            return each
        made = each.whole(why)
        return made.detach() if detached else made

    return private.tree_map(whole, value)
