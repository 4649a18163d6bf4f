"""PyTorch's own functions, by the catalogue's names, parameters in its order; and when they run instead of ours."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from actfit.coefficients.functions import CATALOGUE, Row
from actfit.kernels import private


def _relu2(x: Tensor) -> Tensor:
    return torch.relu(x).square()


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _of_torch(row: Row) -> Callable[..., Any]:
    function = getattr(F, row.torch or "")
    return partial(function, **row.torch_options) if row.torch_options else function


STOCK: dict[str, Callable[..., Any]] = {name: _of_torch(row) for name, row in CATALOGUE.items() if row.torch}
STOCK |= {"relu2": _relu2, "quick_gelu": _quick_gelu}
# Compiled code within torch.func sees since torch 2.15 that a tensor requires a gradient; before, none seemed to.
_GRADIENTS_SHOW = private.release() >= (2, 15)


def stock_runs(*inputs: Tensor) -> bool:
    """True if no gradient is needed or a torch.func transform, an export or a trace is active."""
    return not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in inputs) or transformed()


def transformed() -> bool:
    """True in an export or a trace, whose graph must have standard operations only, and in torch.func's transforms
    (grad, vmap, jvp), which differentiate more than once or in forward mode: there the stock function runs.
    """
    if private.exporting() or torch.jit.is_tracing():
        return True
    if torch.compiler.is_compiling():
        return _GRADIENTS_SHOW and private.in_transform()
    return private.in_transform() or private.in_forward_ad()


def clamp_passes_at_ends() -> bool:
    """Whether the gradient of clamp is 1 at ends that are numbers, as up to torch 2.13; since 2.14 it is 0."""
    return private.release() < (2, 14)
