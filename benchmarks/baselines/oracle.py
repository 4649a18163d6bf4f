"""The exact f and f' of every 16-bit input, in float64, or at 400 bits where float64 loses digits.

Computed by mpmath, to be the same without python-flint.
"""

import math
from functools import cache
from typing import NamedTuple

import mpmath
import numpy as np
import torch
from torch import Tensor

from actfit.fitting.activations import get
from actfit.fitting.activations.tape import Tape

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# Where a catalogue spelling loses digits in float64: 1 + tanh(u), x - tanh(x).
CANCELLING = {"gelu_tanh": (-40.0, 0.0), "tanhshrink": (-1.0, 1.0)}
BITS = 400


class Truth(NamedTuple):
    """All inputs of a dtype in the order of their bits; f rounded to the dtype; f' in float64."""

    x: Tensor
    f: Tensor
    df: Tensor


def all_inputs(dtype: torch.dtype) -> Tensor:
    """Every value of a 16-bit dtype, NaNs and infinities too."""
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)


@cache
def truth(function: str, dtype: torch.dtype) -> Truth:
    """The exact values of a function of the catalogue with its default parameters."""
    f, df = exact(function, dtype)
    return Truth(all_inputs(dtype), f.to(dtype), df)


@cache
def exact(function: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """f and f' of all inputs, in float64."""
    points = all_inputs(dtype).double().numpy()
    activation = get(function)
    span = CANCELLING.get(function, (0.0, 0.0))
    expressions = activation.f_expression, activation.d1_expression
    f, df = (torch.from_numpy(_values(Tape(expression), points, span)) for expression in expressions)
    return f, df


def _values(tape: Tape, points: np.ndarray, span: tuple[float, float]) -> np.ndarray:
    """Values in float64; at BITS bits within the span and if an intermediate result overflows; limits at infinity."""
    values, overflow = tape.numpy_checked(points)
    anew = (overflow & np.isfinite(points)) | ((span[0] < points) & (points < span[1]) & (points != 0))
    with mpmath.workprec(BITS):
        for i in np.flatnonzero(anew):
            values[i] = float(tape.mp(mpmath.mpf(float(points[i]))))
        for end in (-np.inf, np.inf):  # every function of the catalogue is at its limit there
            values[points == end] = float(tape.mp(mpmath.mpf(math.copysign(2, end)) ** 1101))
    values[np.isnan(points)] = np.nan  # conditions are false there and would take the last branch
    return values


def ulps(got: Tensor, expected: Tensor) -> Tensor:
    """How many 16-bit numbers the two are apart; 0 for two NaNs, 2^20 for one."""
    distance = (_ordered(got) - _ordered(expected)).abs()
    distance[torch.isnan(got) & torch.isnan(expected)] = 0
    distance[torch.isnan(got) != torch.isnan(expected)] = 1 << 20
    return distance


def _ordered(values: Tensor) -> Tensor:
    bits = values.view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)
