"""Codes of a flat tensor by groups, each with a minimum and a scale, through the ops."""

import torch
from torch import Tensor

import kernels.engine.ops  # noqa: F401 - registers the ops
from kernels.engine.elements import computed


def encode_groups(
    flat: Tensor, place: tuple[int, int, int], bits: int, noise: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Bit planes, minima and scales.

    Parameters
    ----------
    flat, place, bits
        The tensor; group_size, features and tokens of its groups, see `kernels.engine.reference_codes`; bits of a code.
    noise
        From [0, 1), one for each element, in the type of the computation; None: rounding to nearest.
    """
    minimum, scale = torch.ops.actfit.ends(flat, *place, bits)
    if noise is None:
        noise = torch.full((1,), 0.5, dtype=computed(flat.dtype), device=flat.device)
    exact = scale.to(noise.dtype)
    inverse_scale = torch.where(exact > 0, 1 / exact, 0)
    zeros = torch.zeros_like(minimum)
    return torch.ops.actfit.encode(flat, minimum, inverse_scale, zeros, noise, *place, bits), minimum, scale
