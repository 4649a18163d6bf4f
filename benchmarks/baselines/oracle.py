"""What every 16-bit input should give: f and f' in float64, or in balls where float64 loses digits."""

from functools import cache
from typing import NamedTuple

import flint
import numpy as np
import torch
from torch import Tensor

from fitting.activations import get
from fitting.activations.tape import Tape

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
CANCELLING = ("gelu_tanh", "tanhshrink")  # their catalogue spelling loses digits in float64: 1 + tanh(u), x - tanh(x)


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
    """Of a function of the catalogue with its default parameters."""
    x = all_inputs(dtype)
    activation = get(function)
    points = x.double().numpy()
    f, df = activation.f(points), activation.df(points)
    if function in CANCELLING:
        for values, expression in ((f, activation.f_expression), (df, activation.d1_expression)):
            _by_balls(values, points, Tape(expression))
    f[np.isnan(points)] = np.nan
    return Truth(x, torch.from_numpy(f).to(dtype), torch.from_numpy(df))


def _by_balls(values: np.ndarray, points: np.ndarray, tape: Tape) -> None:
    """Recompute where |x| < 40, at 400 bits: beyond, the two terms that cancel are too far apart to."""
    with flint.ctx.workprec(400):
        for i in np.flatnonzero((np.abs(points) < 40) & (points != 0)):
            values[i] = float(tape.arb(flint.arb(float(points[i]))).mid())


def ulps(got: Tensor, expected: Tensor) -> Tensor:
    """How many numbers of their 16-bit dtype lie between; 0 for two NaNs, a lot for one."""
    distance = (_ordered(got) - _ordered(expected)).abs()
    distance[torch.isnan(got) & torch.isnan(expected)] = 0
    distance[torch.isnan(got) != torch.isnan(expected)] = 1 << 20
    return distance


def _ordered(values: Tensor) -> Tensor:
    bits = values.view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)
