"""Codes of a flat tensor by groups, from the ops: each group has a minimum and a step."""

import torch
from torch import Tensor

import kernels.engine.ops  # noqa: F401 - registers the ops
from kernels.engine.elements import computed


def encode_groups(
    flat: Tensor, place: tuple[int, int, int], bits: int, noise: Tensor | None = None, centered: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Bit planes, minima and steps.

    Parameters
    ----------
    flat, place, bits
        The tensor; run, wide and tokens of its groups, see `kernels.engine.reference_codes`; bits of a code.
    noise
        From [0, 1), as many as there are elements, in the type that is computed in; None: rounding is to the nearest.
    centered
        Whether groups with numbers on both sides of 0 are cut into 2^bits equal parts, and codes stand for the middles
        of these: no error is then more than 1 / 2^(bits + 1) of the range, and without it 1 / (2 * (2^bits - 1)). At 2
        bits that is a quarter less. Not for random rounding, whose mean would be wrong near the ends.
    """
    minimum, step = torch.ops.actfit.ends(flat, *place, bits, centered)
    if noise is None:
        noise = torch.full((1,), 0.5, dtype=computed(flat.dtype), device=flat.device)
    width = step.to(noise.dtype)
    inverse = torch.where(width > 0, 1 / width, 0)
    zeros = torch.zeros_like(minimum)
    return torch.ops.actfit.encode(flat, minimum, inverse, zeros, noise, *place, bits), minimum, step
