"""Codes of dense tensors in groups of neighbours, called without PyTorch's dispatcher: for graphs that run as they are.

The codes are those of the ops encode_groups and decode_groups.
"""

import torch
from torch import Tensor

from actfit.kernels.engine import ops
from actfit.kernels.private import is_fake

Codes = tuple[Tensor, Tensor, Tensor]


def encode(x: Tensor, noise: Tensor | None, group: int, bits: int) -> Codes:
    """Codes, see `actfit.kernels.engine.codes`, minima and scales, bfloat16 [groups], of a flat contiguous tensor.

    noise: float32 in [0, 1), of the shape of x, for stochastic rounding; None: to the nearest.
    """
    run = torch.ops.actfit.encode_groups if is_fake(x) else ops.encode_groups  # the dispatcher knows fake results
    codes: Codes = run(x, noise, group, bits)
    return codes


def decode(codes: Tensor, minimum: Tensor, scale: Tensor, group: int, count: int, dtype: torch.dtype) -> Tensor:
    """The flat tensor of `encode`, `count` elements of the type."""
    run = torch.ops.actfit.decode_groups if is_fake(codes) else ops.decode_groups
    values: Tensor = run(codes, minimum, scale, group, count, dtype)
    return values
