"""What every 16-bit input should give: f and f' in float64, or at 400 bits where float64 loses digits.

By mpmath, so that it is the same where python-flint is not installed.
"""

import math
from functools import cache
from typing import NamedTuple

import mpmath
import numpy as np
import torch
from torch import Tensor

from fitting.activations import get
from fitting.activations.tape import Tape

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# Where a catalogue spelling loses digits in float64: 1 + tanh(u), x - tanh(x).
CANCELLING = {"gelu_tanh": (-40.0, 0.0), "tanhshrink": (-1.0, 1.0)}
BITS = 400


class Truth(NamedTuple):
    """All inputs of a dtype in the order of their bits; f rounded to it; f' in float64."""

    x: Tensor
    f: Tensor
    df: Tensor


def all_inputs(dtype: torch.dtype) -> Tensor:
    """Every value of a 16-bit dtype, NaNs and infinities too."""
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)


@cache
def truth(function: str, dtype: torch.dtype) -> Truth:
    """The truth of a function of the catalogue with its default parameters."""
    x = all_inputs(dtype)
    points = x.double().numpy()
    activation = get(function)
    span = CANCELLING.get(function, (0.0, 0.0))
    f, df = (
        _values(Tape(expression), points, span) for expression in (activation.f_expression, activation.d1_expression)
    )
    return Truth(x, torch.from_numpy(f).to(dtype), torch.from_numpy(df))


def _values(tape: Tape, points: np.ndarray, span: tuple[float, float]) -> np.ndarray:
    """In float64; at BITS bits where something on the way overflows, and within the span; limits at infinity."""
    values, overflow = tape.numpy_checked(points)
    anew = (overflow & np.isfinite(points)) | ((span[0] < points) & (points < span[1]) & (points != 0))
    with mpmath.workprec(BITS):
        for i in np.flatnonzero(anew):
            values[i] = float(tape.mp(mpmath.mpf(float(points[i]))))
        for end in (-np.inf, np.inf):  # no function of the catalogue has structure that far out
            values[points == end] = float(tape.mp(mpmath.mpf(math.copysign(2, end)) ** 1101))
    values[np.isnan(points)] = np.nan  # a condition is false there and would choose the last branch
    return values


def ulps(got: Tensor, expected: Tensor) -> Tensor:
    """How many numbers of their 16-bit dtype lie between; 0 for two NaNs, a lot for one."""
    distance = (_ordered(got) - _ordered(expected)).abs()
    distance[torch.isnan(got) & torch.isnan(expected)] = 0
    distance[torch.isnan(got) != torch.isnan(expected)] = 1 << 20
    return distance


def _ordered(values: Tensor) -> Tensor:
    bits = values.view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)
