"""The arguments of the ops of K-bit codes, stated once for the Triton kernels and for plain PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from kernels.engine.elements import computed

P = ParamSpec("P")
Arguments = TypeVar("Arguments")

LARGEST_HALF = torch.finfo(torch.float16).max  # to which what decodes to more is clamped, as the last code may


@dataclass(frozen=True, slots=True)
class Encode:
    """The arguments of the op `encode`.

    Attributes
    ----------
    x
        The tensor to encode.
    center, inverse_scale, offset
        Vectors of one length, or of one entry; a scale is the difference between the values of neighbouring codes.
    noise
        Numbers from [0, 1): one for each element of x, or one for all; or None.
    group_size, features, tokens
        Which elements share an entry, see `kernels.engine.reference_codes`.
    bits
        Of a code.
    """

    x: Tensor
    center: Tensor
    inverse_scale: Tensor
    offset: Tensor
    noise: Tensor | None
    group_size: int
    features: int
    tokens: int
    bits: int


@dataclass(frozen=True, slots=True)
class Decode:
    """The arguments of the op `decode`.

    Attributes
    ----------
    planes
        uint8 [bits, ceil(count/8)]; a plane is contiguous, and planes may be any distance apart.
    scale, minimum
        Vectors of groups: code c stands for minimum + c * scale.
    group_size, features, tokens
        Which elements share an entry of scale and minimum.
    gain, bias
        Vectors of channels of `inner` elements, or None.
    signs
        One plane, set where the value is known to be above 0; elsewhere the value is multiplied by `slope`.
    slope
        Of a leaky ReLU.
    clamp
        Whether a value with the wrong sign becomes 0 first. With rounding to nearest this reduces the error; with
        stochastic rounding it makes the mean wrong.
    count, dtype
        Of the values.
    """

    planes: Tensor
    scale: Tensor
    minimum: Tensor
    group_size: int
    features: int
    tokens: int
    gain: Tensor | None
    bias: Tensor | None
    inner: int
    signs: Tensor | None
    slope: float
    clamp: bool
    count: int
    dtype: torch.dtype


def in_a_row(count: int, group_size: int, features: int, tokens: int) -> bool:
    """Whether groups are of neighbours, one after another, of which only the last may be shorter."""
    return features == 1 and (tokens >= count or tokens % group_size == 0)


def in_two_steps(
    ends: Callable[..., tuple[Tensor, Tensor]],
    encode: Callable[..., Tensor],
    x: Tensor,
    noise: Tensor | None,
    group_size: int,
    features: int,
    tokens: int,
    bits: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Bit planes, minima and scales of x, as by the op `encode_groups`: the ends of all groups, then their codes."""
    place = group_size, features, tokens
    minimum, scale = ends(x, *place, bits)
    wide = computed(x.dtype)
    noise = torch.full((1,), 0.5, dtype=wide, device=x.device) if noise is None else noise.to(wide)
    exact = scale.to(wide)
    inverse_scale = torch.where(exact > 0, 1 / exact, 0)
    return encode(x, minimum, inverse_scale, torch.zeros_like(minimum), noise, *place, bits), minimum, scale


def called_with_fields_of(
    dataclass_type: Callable[P, Arguments],
) -> Callable[[Callable[[Arguments], Tensor]], Callable[P, Tensor]]:
    """Decorator of a function of one such object: the result takes the fields as its arguments, as the op does."""

    def decorated(function: Callable[[Arguments], Tensor]) -> Callable[P, Tensor]:
        def called(*args: P.args, **kwargs: P.kwargs) -> Tensor:
            return function(dataclass_type(*args, **kwargs))

        called.__doc__ = function.__doc__
        return called

    return decorated
