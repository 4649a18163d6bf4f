"""An activation and the linear layer after it as one, which save one tensor between them, and not a bit more.

What is saved is ±(y - min f), the sign telling the side of the minimum. Backward makes of it f'(x), and y for the
gradient of the weight.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kernels.engine.ops  # noqa: F401 - registers the ops
from kernels.autograd import once_differentiable
from kernels.engine.elements import DTYPES
from kernels.errors import KernelError
from kernels.functional import stock_runs
from kernels.hooks import autocasts
from kernels.modules import Activation
from kernels.stock import STOCK
from kernels.validate import sign_bit_kernel


class _ActLinear(torch.autograd.Function):
    """F.linear(f(x), weight, bias); saves ±(f(x) - min f) and the weight."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, kernel: str, minimum: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, signed = torch.ops.actfit.forward(x, kernel, [])
        return F.linear(y, weight, bias), signed, x.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        _, weight, bias, ctx.kernel, ctx.minimum = inputs
        ctx.with_bias = bias is not None
        _, signed, anchor = output
        ctx.mark_non_differentiable(signed)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(signed, weight, anchor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None, None, None
        signed, weight, anchor = ctx.saved_tensors
        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            dy = (grad @ weight).contiguous()
            dx = torch.ops.actfit.backward(dy, None, signed, ctx.kernel, [])
        rows = grad.reshape(-1, grad.shape[-1])
        if ctx.needs_input_grad[1]:
            y = signed.abs().add_(ctx.minimum)
            dweight = rows.T @ y.reshape(-1, y.shape[-1])
        if ctx.with_bias and ctx.needs_input_grad[2]:
            dbias = rows.sum(0)
        return *(None if one is None else once_differentiable(one, anchor) for one in (dx, dweight, dbias)), None, None


class ActLinear(nn.Module):
    """linear(act(x)), for an `act` that falls to a minimum and rises again: gelu, silu, mish, hardswish, ...

    It saves one tensor of the size of x for backward, where stock saves two.

    Parameters
    ----------
    act
        A module of `kernels.modules`, or a function's name; its method is not used.
    linear
        An nn.Linear, which stays the same object, but is not called: hooks on it do not run, and FSDP must wrap the
        whole.

    Raises
    ------
    KernelError
        For other functions and layers.
    """

    def __init__(self, act: Activation | str, linear: nn.Linear) -> None:
        super().__init__()
        if not isinstance(linear, nn.Linear):
            raise KernelError(f"linear must be an nn.Linear, got {type(linear).__name__}")
        if type(linear).forward is not nn.Linear.forward:
            raise KernelError(
                f"linear must compute what nn.Linear does, got {type(linear).__name__} with its own forward"
            )
        if not isinstance(act, Activation | str):
            raise KernelError(f"act must be a module of kernels.modules or a function's name, got {type(act).__name__}")
        self.function = act if isinstance(act, str) else act.name()
        spec = sign_bit_kernel(self.function)
        self.kernel, self.minimum = spec.key, spec.function.minimum
        self.linear = linear

    def forward(self, input: Tensor) -> Tensor:
        """linear(act(input)); the weight's gradient is made of y to within a unit in the last place of y - min f."""
        if not isinstance(input, Tensor):
            raise KernelError(f"input must be a tensor, got {type(input).__name__}")
        if input.layout != torch.strided:
            raise KernelError(f"input must be a strided tensor, got {input.layout}; use input.to_dense()")
        if input.dtype not in DTYPES:
            raise KernelError(f"input must be a tensor of float16, bfloat16, float32 or float64, got {input.dtype}")
        weight, bias = self.linear.weight, self.linear.bias
        if stock_runs(input, weight, *(() if bias is None else (bias,))):
            return F.linear(STOCK[self.function](input), weight, bias)
        kind = input.device.type
        if not autocasts(kind):
            return _ActLinear.apply(input, weight, bias, self.kernel, self.minimum)[0]
        if torch.is_autocast_enabled(kind) and input.dtype != torch.float64:  # which autocast leaves alone
            narrow = torch.get_autocast_dtype(kind)
            input, weight = input.to(narrow), weight.to(narrow)
            bias = None if bias is None else bias.to(narrow)
        with torch.autocast(kind, enabled=False):
            out, *_ = _ActLinear.apply(input, weight, bias, self.kernel, self.minimum)
        return out

    def extra_repr(self) -> str:
        return f"act={self.function!r}, saves y - min f with the side in its sign"
