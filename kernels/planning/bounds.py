"""How far the gradient of a plan may be off."""

from math import inf
from typing import Any, Literal

import torch
from torch import nn

from actfit.kernels.errors import KernelError, shown
from actfit.kernels.methods.planned import WIDTHS

Bound = float | Literal["dtype"]
# Of the coarsest dtype: what rounding any change of a gradient anew comes to in networks of bfloat16, .3 % to 1.1 %,
# with room.
ROUNDING = 4


def check_bound(bound: Any) -> None:
    """Raise KernelError for a bound that is none."""
    is_number = isinstance(bound, int | float) and not isinstance(bound, bool)
    if bound not in (None, "dtype") and not (is_number and 0 <= bound < inf):
        raise KernelError(f'max_gradient_error must be "dtype" or a number of 0 or more, got {shown(bound)}')


def squared_bound(bound: Bound | None, model: nn.Module) -> float:
    """The largest ||g' - g||² / ||g||² that is allowed: as given, or as rounding to the dtype in training makes it.

    0 if that is less than what float32 rounds, or, of a dtype, finer than codes of the most bits could ever be.
    """
    if isinstance(bound, int | float):
        return float(bound) ** 2 if bound >= torch.finfo(torch.float32).eps else 0.0
    dtypes = {x.dtype for x in model.parameters() if x.is_floating_point() and x.itemsize > 1}
    devices = {x.device.type for x in model.parameters()} - {"meta"}
    dtypes |= {torch.get_autocast_dtype(device) for device in devices if torch.is_autocast_enabled(device)}
    rounding = ROUNDING * max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)
    return rounding**2 if rounding > 2.0 ** -(2 * WIDTHS[-1]) else 0.0
