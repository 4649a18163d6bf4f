"""The current state of torch.autocast."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.hooks import autocasts


def autocasting(given: Sequence[Tensor]) -> bool:
    """Whether autocast is on for the device of these tensors."""
    return bool(given) and autocast_of(given[0].device.type)[2]


def autocast_of(kind: str) -> tuple[str, torch.dtype | None, bool]:
    """Arguments of torch.autocast that restore its current state: kind of device, type, and whether it is on."""
    if not autocasts(kind):
        return "cpu", None, False
    enabled = torch.is_autocast_enabled(kind)
    return kind, torch.get_autocast_dtype(kind) if enabled else None, enabled
