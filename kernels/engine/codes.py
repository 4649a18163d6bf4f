"""What codes of groups have in common on all devices."""

from collections.abc import Callable

import torch
from torch import Tensor

from actfit.kernels.engine.elements import computed

LARGEST_HALF = torch.finfo(torch.float16).max  # to which what decodes to more is clamped, as the last code may


def in_two_steps(
    ends: Callable[..., tuple[Tensor, Tensor]],
    encode: Callable[..., Tensor],
    x: Tensor,
    noise: Tensor | None,
    group_size: int,
    bits: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Bit planes, minima and scales of x, as by the op `encode_groups`: the ends of all groups, then their codes."""
    minimum, scale = ends(x, group_size, bits)
    wide = computed(x.dtype)
    noise = torch.full((1,), 0.5, dtype=wide, device=x.device) if noise is None else noise.to(wide)
    exact = scale.to(wide)
    inverse_scale = torch.where(exact > 0, 1 / exact, 0)
    return encode(x, minimum, inverse_scale, torch.zeros_like(minimum), noise, group_size, bits), minimum, scale
