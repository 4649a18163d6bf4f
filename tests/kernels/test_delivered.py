"""The error of invact's gradient from PyTorch's own output, as on a CPU, against the error in its file."""

import math

import pytest
import torch
from torch import Tensor

from actfit.coefficients import load
from actfit.fitting.activations import get
from actfit.kernels.engine import reference
from actfit.kernels.generated.functions import FUNCTIONS
from benchmarks.baselines.oracle import DTYPES, truth
from tests.kernels.specs import spec

TWO_SIDED = [name for name in FUNCTIONS if FUNCTIONS[name].branches == 2 and name != "threshold"]


def delivered(name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """y and the gradient of y.sum()."""
    kernel, params = spec(name, "invact"), tuple(FUNCTIONS[name].parameters.values())
    y, saved = reference.forward(kernel, x, params)
    return y, reference.backward(kernel, torch.ones_like(x), y, saved, params)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_16_bits_deliver_what_the_file_says(name: str, dtype: str) -> None:
    """At all inputs: the file's largest error, 2**-19 for float32 arithmetic, half a unit for rounding f'."""
    x, f, df = truth(name, DTYPES[dtype])
    y, dx = delivered(name, x)
    finite = torch.isfinite(x) & torch.isfinite(f) & torch.isfinite(y)
    limit = load(name, f"invact-{dtype}")["error"]["linf"] + 2.0**-19 + torch.finfo(x.dtype).eps / 2 * dx.double().abs()
    error = (dx.double() - df).abs()
    worst = int(torch.where(finite, error / limit, 0.0).argmax())
    assert (error <= limit)[finite].all(), (x[worst], y[worst], f[worst], dx[worst], df[worst], error[worst])


UNITS = 4  # largest error of stock's y on the measured processors; docs/explanation/trust.md


@pytest.mark.parametrize("name", TWO_SIDED)
def test_float32_delivers_what_stocks_output_tells(name: str) -> None:
    """An error d of y moves f' by up to sqrt(2 d max|f''|), as d(f'**2)/dy = 2 f''; next to the minimum, by as much.

    Stock's y is off by some units, but the file assumes the nearest number.
    """
    activation, document = get(name), load(name, "invact-float32")
    border = torch.tensor(document["solution"]["border"], dtype=torch.float32)
    beside = (border.view(torch.int32) + torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32)).view(torch.float32)
    x = torch.cat([beside, border + torch.linspace(-0.03, 0.03, 1 << 15), torch.linspace(-12, 12, 1 << 15)])
    f, df = (torch.from_numpy(values(x.double().numpy())) for values in (activation.f, activation.df))
    grid = torch.linspace(-12, 12, 24001).double()
    steepest = torch.from_numpy(activation.df(grid.numpy())).diff().abs().max() / (grid[1] - grid[0])
    unit = torch.finfo(torch.float32).eps * 2.0 ** math.floor(math.log2(-activation.minimum.value))
    worst = math.sqrt(2 * UNITS * unit * steepest)
    vector, scalar = x, torch.stack([x, x], 1)[:, 0]
    for laid in (vector, scalar):
        y, dx = delivered(name, laid)
        error, off = (dx.double() - df).abs(), (y.double() - f).abs()
        # 0.1 % for f'' between the sampled points.
        assert (error <= document["error"]["linf"] + (2 * off * steepest * 1.001).sqrt()).all()
        assert document["error"]["linf"] < error.max() <= document["error"]["linf"] + worst
        assert error[-(1 << 15) :].pow(2).mean().sqrt() <= 1e-6
