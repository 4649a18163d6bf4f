"""`elementwise`, functions that users write as kernels: values and gradients, against float64 and against torch."""

import math
import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from actfit import KernelError, elementwise
from tests.codegen.emitted import functions
from tests.kernels.written import DTYPES, MADE, WRITTEN, both, each_dtype, exact, several


def check(name: str, x: Tensor, grad: Tensor) -> None:
    """Against float64: y is rounded once, dx twice, and intermediate numbers up to 2, or up to a large x, are off by
    some 16 units of 2**-24 (in float64, 2**-53), as in `test_properties`."""
    y, dx = both(MADE[name], x, grad)
    true, slope = exact(WRITTEN[name], x, grad)
    assert (y.dtype, dx.dtype, y.shape, dx.shape) == (x.dtype, x.dtype, x.shape, x.shape)
    eps, least = torch.finfo(x.dtype).eps, torch.finfo(x.dtype).smallest_normal
    inner = 32 * (2.0**-53 if x.dtype == torch.float64 else 2.0**-24)
    large = 1 + x.double().cpu().abs()
    assert ((y.double().cpu() - true).abs() <= eps * true.abs() + inner * large * (1 + true.abs()) + least).all()
    limit = 1.5 * eps * slope.abs() + inner * large * (grad.double().cpu().abs() + slope.abs()) + least
    assert ((dx.double().cpu() - slope).abs() <= limit).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", WRITTEN)
def test_values_and_gradients_are_those_of_float64(name: str, dtype: torch.dtype, place: str) -> None:
    x = (torch.randn(1003, dtype=torch.float64) * 3).to(dtype).to(place)
    check(name, x, torch.randn(1003).to(dtype).to(place))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(functions(), st.sampled_from(DTYPES[:3]), st.integers(0, 2**32 - 1))
def test_random_functions(device: str, function: Callable[..., Tensor], dtype: torch.dtype, seed: int) -> None:
    x = (torch.randn(64, generator=torch.Generator().manual_seed(seed)) * 2).to(dtype)
    try:
        got = both(elementwise(function), x.to(device), torch.ones_like(x).to(device))
    except KernelError as error:
        if not re.search("a formula must have at most|must depend on x", str(error)):
            raise
        return
    near = [exact(function, x.double() + step, torch.ones_like(x)) for step in (-(2.0**-16), 2.0**-16)]
    for which, true in enumerate(exact(function, x, torch.ones_like(x))):
        # Beside a kink or a jump, rounding may select the other branch; values of either branch are right there.
        # Elsewhere: some twenty operations in float32, and one rounding.
        jump = (near[1][which] - near[0][which]).abs() + (near[1][which] - true).abs()
        size = 1 + torch.stack([true, near[0][which]]).abs().max()
        limit = torch.finfo(dtype).eps * true.abs() + torch.finfo(dtype).smallest_normal + 2.0**-17 * size + 2 * jump
        assert ((got[which].double().cpu() - true).abs() <= limit).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", WRITTEN)
def test_extremes(name: str, dtype: torch.dtype, place: str) -> None:
    """Where the formula is finite in float64, so is the kernel; for x whose square is beyond float32, this holds for
    functions without powers."""
    points = [0.0, -0.0, 1e-30, -1e-30, 89.0, -89.0, 1e4, -1e4]
    if name not in ("gelu_tanh", "squared relu", "powers", "rational", "snake"):
        points += [1e30, -1e30, math.inf, -math.inf]
    x = torch.tensor(points, dtype=dtype)
    got = both(MADE[name], x.to(place), torch.ones_like(x).to(place))
    for computed, expected in zip(got, exact(WRITTEN[name], x, torch.ones_like(x)), strict=True):
        finite = expected.abs() < 1e35  # leaves room below the largest float32
        # Angles of 1e4 are rounded to 2**-10 before their sine is taken.
        units = 2.0**-9 if name == "snake" else 8 * 2.0**-24
        limit = (torch.finfo(dtype).eps + units) * (1 + expected.abs())
        assert ((computed.double().cpu() - expected).abs() <= limit)[finite].all(), (computed, expected)
        assert finite.sum() >= 6


@each_dtype
def test_nan_gives_nan(dtype: torch.dtype, place: str) -> None:
    x = torch.full((9,), math.nan, dtype=dtype, device=place)
    for kernel in MADE.values():
        assert torch.isnan(kernel(x)).all()
        assert torch.isnan(kernel(x.requires_grad_())).all()


KINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "abs": lambda x: x.abs(),
    "relu6": F.relu6,
    "clamp": lambda x: x.clamp(-1, 1),
    "hardtanh": F.hardtanh,
    "leaky": lambda x: F.leaky_relu(x, 0.25),
    "hardshrink": F.hardshrink,
    "ties": lambda x: torch.maximum(x, x * x) + torch.minimum(x, -x),
    "where": lambda x: torch.where(x >= 1, 3 * x, torch.where(x < -1, x, -x)),
}


@pytest.mark.parametrize("name", KINKS)
def test_derivatives_at_kinks_are_torchs(name: str, place: str) -> None:
    x = torch.tensor([-6.0, -1.0, -0.5, 0.0, -0.0, 0.5, 1.0, 6.0])
    got = both(elementwise(KINKS[name]), x.to(place), torch.ones_like(x).to(place))
    for computed, expected in zip(got, exact(KINKS[name], x, torch.ones_like(x)), strict=True):
        assert torch.equal(computed.double().cpu(), expected)


def test_several_results(place: str) -> None:
    x = torch.randn(5, 9, device=place).t().requires_grad_()
    results = several(x, beta=2.0)
    assert type(results) is tuple
    assert [result.stride() for result in results] == [x.stride()] * 3
    weights = [torch.randn(9, 5, device=place) for _ in results]
    wide = x.detach().double().requires_grad_()
    expected = several.function(wide, beta=2.0)
    for indices in ([0, 1, 2], [1], [0, 2]):  # the others get no gradient
        total = sum((results[i] * weights[i]).sum() for i in indices)
        (dx,) = torch.autograd.grad(total, x, retain_graph=True)
        (true,) = torch.autograd.grad(sum((expected[i] * weights[i]).sum() for i in indices), wide, retain_graph=True)
        torch.testing.assert_close(dx.double(), true, rtol=2.0**-20, atol=2.0**-20)
    for result, true in zip(results, expected, strict=True):
        torch.testing.assert_close(result.double(), true, rtol=2.0**-22, atol=2.0**-22)


def test_constant_results(place: str) -> None:
    x = torch.randn(9, dtype=torch.bfloat16, device=place).requires_grad_()
    ones, same = elementwise(lambda x: (torch.ones_like(x), x))(x)
    assert torch.equal(ones, torch.ones_like(x))
    assert torch.equal(same, x)
    assert same.data_ptr() != x.data_ptr()
    assert torch.equal(torch.autograd.grad((ones + 2 * same).sum(), x)[0], torch.full_like(x, 2))
