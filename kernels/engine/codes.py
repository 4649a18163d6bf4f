"""The arguments of the ops of K-bit codes, stated once for the Triton kernels and for plain PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
Given = TypeVar("Given")


@dataclass(frozen=True, slots=True)
class Encode:
    """The arguments of the op `encode`.

    Attributes
    ----------
    x
        The tensor to encode.
    center, scale, offset
        Vectors of one length, or of one entry; scale is the inverse of the step from code to code.
    noise
        Numbers from [0, 1): one for each element of x, or one for all; or None.
    run, wide, tokens
        Which elements share an entry, see `kernels.engine.reference_codes`.
    bits
        Of a code.
    """

    x: Tensor
    center: Tensor
    scale: Tensor
    offset: Tensor
    noise: Tensor | None
    run: int
    wide: int
    tokens: int
    bits: int


@dataclass(frozen=True, slots=True)
class Decode:
    """The arguments of the op `decode`.

    Attributes
    ----------
    planes
        uint8 [bits, ceil(count/8)].
    step, base
        Vectors of groups.
    run, wide, tokens
        Which elements share an entry of step and base.
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
    step: Tensor
    base: Tensor
    run: int
    wide: int
    tokens: int
    gain: Tensor | None
    bias: Tensor | None
    inner: int
    signs: Tensor | None
    slope: float
    clamp: bool
    count: int
    dtype: torch.dtype


def taking(kind: Callable[P, Given]) -> Callable[[Callable[[Given], Tensor]], Callable[P, Tensor]]:
    """Decorates a function of a `kind` object: it is called with the fields, as the op calls it."""

    def decorated(run: Callable[[Given], Tensor]) -> Callable[P, Tensor]:
        def called(*args: P.args, **kwargs: P.kwargs) -> Tensor:
            return run(kind(*args, **kwargs))

        called.__doc__ = run.__doc__
        return called

    return decorated
