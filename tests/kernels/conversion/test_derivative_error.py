"""The error of a derivative, by which auto judges, and its default bound."""

import pytest
import torch
from torch.nn import functional as F

from kernels.conversion.derivative_error import SLACK, derivative_error, error_bound
from kernels.conversion.function import Function
from kernels.functional import activation
from kernels.methods.few_bit import FewBit
from kernels.methods.forward_derivative import ForwardDerivative
from kernels.methods.from_output import FromOutput


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_error_of_a_derivative_is_that_of_its_rounding(dtype: torch.dtype) -> None:
    """f' of forward-ad is rounded once: by half a unit in the last place at most, and uniformly so."""
    error = derivative_error("gelu", (), dtype, ForwardDerivative())
    points = torch.special.ndtri((torch.arange(4096, dtype=torch.float64) + 0.5) / 4096).to(dtype).double()
    slope = torch.autograd.functional.jacobian(lambda x: F.gelu(x).sum(), points)
    rounded = float((slope.to(dtype).double() - slope).square().mean().sqrt())
    # float32 arithmetic adds its own 2^-24 or so to float32's.
    assert rounded * 0.99 <= error <= rounded * 1.01 + 2**-24


def test_the_default_bound_is_invacts_error_or_where_there_is_none_the_exact_ones() -> None:
    gelu, steep = Function("gelu"), Function("elu", {"alpha": -1.0})
    invact = derivative_error("gelu", (), torch.bfloat16, FromOutput())
    assert error_bound(gelu, torch.bfloat16, None) == SLACK * invact
    exact = derivative_error("elu", (("alpha", -1.0),), torch.bfloat16, ForwardDerivative())
    assert error_bound(steep, torch.bfloat16, None) == SLACK * exact
    assert error_bound(gelu, torch.bfloat16, 0.25) == 0.25


def test_one_bits_error_is_the_tables() -> None:
    """By the table itself, without a kernel."""
    from coefficients import load

    table = load("gelu", "fewbit-1bit")["solution"]
    points = torch.special.ndtri((torch.arange(4096, dtype=torch.float64) + 0.5) / 4096).float()
    codes = torch.tensor(table["codes"])[torch.bucketize(points.double(), torch.tensor(table["borders"]).double())]
    levels = torch.tensor(table["levels"], dtype=torch.float64)[codes]
    exact = torch.autograd.functional.jacobian(lambda x: activation("gelu", x, method="stock").sum(), points.double())
    expected = float((levels - exact).square().mean().sqrt())
    assert derivative_error("gelu", (), torch.float32, FewBit(1)) == pytest.approx(expected, rel=2**-20)
