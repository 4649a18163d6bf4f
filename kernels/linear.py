"""An activation and the linear layer after it in one module, which saves only one tensor for both.

It saves ±(y - min f), whose sign tells on which branch x is, or a joint code of x. Backward computes f'(x) from it, and
y for the gradient of the weight.
"""

import math
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import actfit.kernels.engine.ops  # noqa: F401 - registers the ops
from actfit.coefficients.functions import ALIASES
from actfit.kernels.autograd import is_compiling, once_differentiable
from actfit.kernels.engine import traced
from actfit.kernels.errors import KernelError
from actfit.kernels.methods.method import spec_of
from actfit.kernels.modules import Activation
from actfit.kernels.stock import STOCK, stock_runs
from actfit.kernels.validate import check_tensor, joint_kernels, resolved, sign_bit_kernel


class _ActLinear(torch.autograd.Function):
    """F.linear(f(x), weight, bias); saves the weight, and what `kernel` saves of x.

    `outputs` is the kernel that decodes y; "" if ±(y - minimum) is saved. `passes` as for
    `actfit.kernels.autograd.Elementwise`.
    """

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, kernel: str, outputs: str, minimum: float, passes: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, saved = passes.forward(x, kernel, [], [])
        return F.linear(y, weight, bias), saved, x.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, weight, bias, ctx.kernel, ctx.outputs, ctx.minimum, ctx.passes = inputs
        ctx.shape = x.shape
        ctx.with_bias = bias is not None
        _, saved, anchor = output
        ctx.mark_non_differentiable(saved)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(saved, weight, anchor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None, None, None, None, None
        saved, weight, anchor = ctx.saved_tensors
        dx = dweight = dbias = None
        rows = grad.flatten(0, -2) if grad.dim() > 1 else grad[None]
        if ctx.needs_input_grad[1]:
            y = _outputs(ctx, saved, rows)
            dweight = rows.T @ y.view(rows.shape[0], weight.shape[1])
        if ctx.needs_input_grad[0]:
            dy = (grad @ weight).contiguous().view(ctx.shape)
            dx = ctx.passes.backward(dy, None, saved, ctx.kernel, [])
        if ctx.with_bias and ctx.needs_input_grad[2]:
            dbias = rows.sum(0)
        gradients = (dx, dweight, dbias)
        once = (None if gradient is None else once_differentiable(gradient, anchor) for gradient in gradients)
        return *once, None, None, None, None


def _outputs(ctx: Any, saved: Tensor, rows: Tensor) -> Tensor:
    """y, in any shape, in the dtype of `rows`."""
    if not ctx.outputs:
        y: Tensor = saved.abs().add_(ctx.minimum)
    elif ctx.passes is traced:
        y = traced.levels(saved, ctx.outputs, rows.new_empty(ctx.shape))
    else:
        y = torch.ops.actfit.levels(saved, ctx.outputs, math.prod(ctx.shape), rows.dtype)
    return y


@torch.compiler.allow_in_graph  # see `actfit.kernels.activation._apply`
def _act_linear(x: Tensor, weight: Tensor, bias: Tensor | None, kernel: str, outputs: str, minimum: float) -> Tensor:
    plain = is_compiling() and traced.traceable(kernel, x.dtype)
    passes = traced if plain else torch.ops.actfit
    out: Tensor = _ActLinear.apply(x, weight, bias, kernel, outputs, minimum, passes)[0]
    return out


def _autocasts(kind: str) -> bool:
    """Whether a device type has autocast; meta has not. Up to torch 2.12 Dynamo cannot trace torch's own check."""
    return kind != "meta" and (torch.compiler.is_compiling() or torch.amp.is_autocast_available(kind))


class ActLinear(nn.Module):
    """linear(act(x)), which saves one tensor of the size of x for backward, or few bits of it; stock saves two.

    Without `bits` and `coefficients` gradients are exact, up to rounding, and `act` must fall to a minimum and rise
    again: gelu, silu, mish, hardswish, ... With them it saves a joint code of x, by which backward looks up f'(x) and
    y: both gradients are approximate, and accurate only for x of the distribution that the code was fitted to: N(0, 1)
    for the codes of this package.

    Parameters
    ----------
    act
        A module of `actfit.nn`, or a function's name; its method is not used.
    linear
        An nn.Linear, which stays the same object but is not called: its hooks do not run, and FSDP must wrap this
        module.
    bits
        Of a joint code, 2 to 8.
    coefficients
        A joint code of your own: the path of a file that `actfit fewbit --joint` wrote.

    Raises
    ------
    KernelError
        For unsupported functions, layers, bits and files.
    """

    def __init__(
        self,
        act: Activation | str,
        linear: nn.Linear,
        *,
        bits: int | None = None,
        coefficients: str | PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(linear, nn.Linear):
            raise KernelError(f"linear must be an nn.Linear, got {type(linear).__name__}")
        if type(linear).forward is not nn.Linear.forward:
            raise KernelError(
                f"linear must compute what nn.Linear does, got {type(linear).__name__} with its own forward"
            )
        if not isinstance(act, Activation | str):
            raise KernelError(f"act must be a module of actfit.nn or a function's name, got {type(act).__name__}")
        name = act if isinstance(act, str) else act.name()
        self.function = ALIASES.get(name, name)
        self.bits, self.coefficients = bits, resolved(coefficients)
        self._find_kernels()
        self.linear = linear

    def _find_kernels(self) -> None:
        if self.bits is None and self.coefficients is None:
            spec = sign_bit_kernel(self.function)
            self.outputs, self.minimum = "", spec.function.minimum or 0.0
        else:
            spec, outputs = joint_kernels(self.function, self.bits, self.coefficients)
            self.outputs, self.minimum = outputs.key, 0.0
        self.kernel = spec.key

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        try:
            for key in filter(None, (self.kernel, self.outputs)):
                spec_of(key)
        except KernelError:  # not registered yet in another process
            self._find_kernels()

    def forward(self, input: Tensor) -> Tensor:
        """linear(act(input)); without a code the weight's gradient uses y to within a unit in the last place of
        y - min f."""
        check_tensor("input", input)
        weight, bias = self.linear.weight, self.linear.bias
        if stock_runs(input, weight, *(() if bias is None else (bias,))):
            return F.linear(STOCK[self.function](input), weight, bias)
        kind = input.device.type
        if not _autocasts(kind):
            return _act_linear(input, weight, bias, self.kernel, self.outputs, self.minimum)
        if torch.is_autocast_enabled(kind) and input.dtype != torch.float64:  # which autocast does not cast
            narrow = torch.get_autocast_dtype(kind)
            input, weight = input.to(narrow), weight.to(narrow)
            bias = None if bias is None else bias.to(narrow)
        with torch.autocast(kind, enabled=False):
            return _act_linear(input, weight, bias, self.kernel, self.outputs, self.minimum)

    def extra_repr(self) -> str:
        stored = "y - min f with the branch in its sign"
        if self.outputs:
            stored = f"a joint code of x, {spec_of(self.kernel).stored_bits} bits"
        return f"act={self.function!r}, saves {stored}"
