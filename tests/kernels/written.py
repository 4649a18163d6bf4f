"""Functions as users write them, and the kernels made of them."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from actfit import elementwise
from actfit.codegen.runtime import Elementwise

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


WRITTEN: dict[str, Callable[[Tensor], Tensor]] = {
    "mish": lambda x: x * torch.tanh(F.softplus(x)),
    "gelu_tanh": _gelu,
    "gelu": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "snake": lambda x: x + torch.sin(2 * x) ** 2 / 2,
    "leaky": lambda x: torch.where(x > 0, x, 0.1 * x),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "softplus": lambda x: torch.log(1 + torch.exp(x)),
    "hardswish": lambda x: x * F.relu6(x + 3) / 6,
    "squared relu": lambda x: F.relu(x).square(),
    "clamped": lambda x: x.clamp(-1, 1).mul(x.sigmoid()),
    "swish": lambda x: x * torch.sigmoid(1.702 * x),
    "powers": lambda x: (1 + x * x) ** 0.3 + x.abs() ** 1.5,
    "rational": lambda x: x * (1 + x.abs()).reciprocal() + torch.rsqrt(1 + x**2),
}
MADE = {name: elementwise(function) for name, function in WRITTEN.items()}


@elementwise
def several(x: Tensor, beta: float = 1.0) -> tuple[Tensor, ...]:
    """Three results of one kernel."""
    return x * torch.sigmoid(beta * x), torch.relu(x), 2 - x


def exact(function: Callable[..., Tensor], x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """y and dx by torch in float64."""
    wide = x.detach().double().cpu().requires_grad_()
    y = function(wide)
    return y.detach(), torch.autograd.grad(y, wide, grad.double().cpu())[0]


def both(run: Elementwise, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """y and dx by the kernels."""
    x = x.detach().requires_grad_()
    y = run(x)
    return y.detach(), torch.autograd.grad(y, x, grad)[0]
