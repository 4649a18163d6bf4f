"""The arguments of the ops of K-bit codes, stated once for the Triton kernels and for plain PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from kernels.engine.elements import computed

P = ParamSpec("P")
Arguments = TypeVar("Arguments")

# Clipping: each end of a group's range may move inwards, by this over 2**bits of the range, if that lessens the sum of
# squared errors. An end that is 0 stays, so that zeros stay zeros: their errors would add up.
CLIPPED = 0.75
WIDEST_CLIPPED = 3  # bits; with 4 the error would fall by 7 %, and coding take twice as long, as it does with 2
# Squared errors in units of the step of the whole range are below 1/2. They are summed as whole numbers of these parts,
# so that sums do not depend on the order, and 32 bits hold those of so many.
PARTS, MOST_CLIPPED = 1 << 16, 1 << 16
# Steps outside of this range stay: the inverse of a step, and of the shorter ones, has to be finite.
LEAST_STEP, MOST_STEP = 2.0**-64, 2.0**64
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


def clips(clipped: bool, noise: Tensor | None, group_size: int, bits: int) -> bool:
    """Whether ranges are clipped, if `clipped` asks for it.

    Not if rounding is stochastic, as what is clipped would have a wrong mean.
    """
    return clipped and noise is None and bits <= WIDEST_CLIPPED and group_size <= MOST_CLIPPED


def clipped_ends(low: Tensor, high: Tensor, bits: int) -> tuple[tuple[Tensor, Tensor], ...]:
    """Ranges to try in place of those from `low` to `high`: with the lower end moved, the upper, and both."""
    cut = (high - low) * (CLIPPED / (1 << bits))
    inner_low, inner_high = torch.where(low == 0, low, low + cut), torch.where(high == 0, high, high - cut)
    return (inner_low, high), (low, inner_high), (inner_low, inner_high)


def in_two_steps(
    ends: Callable[..., tuple[Tensor, Tensor]],
    encode: Callable[..., Tensor],
    x: Tensor,
    noise: Tensor | None,
    group_size: int,
    features: int,
    tokens: int,
    bits: int,
    clipped: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Bit planes, minima and scales of x, as by the op `encode_groups`: the ends of all groups, then their codes."""
    place = group_size, features, tokens
    minimum, scale = ends(x, *place, bits, clipped)
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
