"""What torch.autocast does now."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.hooks import autocasts


def autocasting(given: Sequence[Tensor]) -> bool:
    """Whether a call of these tensors is one under autocast."""
    return bool(given) and autocast_of(given[0].device.type)[2]


def autocast_of(kind: str) -> tuple[str, torch.dtype | None, bool]:
    """What torch.autocast is given to be as it is now: the kind of device, the type, and whether it is on."""
    if not autocasts(kind):
        return "cpu", None, False
    enabled = torch.is_autocast_enabled(kind)
    return kind, torch.get_autocast_dtype(kind) if enabled else None, enabled
