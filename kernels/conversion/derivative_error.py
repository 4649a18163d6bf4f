"""The error of f' with a method, and the methods that meet a bound on it."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from kernels import private
from kernels.conversion.function import Function
from kernels.errors import KernelError
from kernels.functional import activation
from kernels.methods.few_bit import MAX_BITS, FewBit
from kernels.methods.forward_derivative import ForwardDerivative
from kernels.methods.from_output import FromOutput
from kernels.methods.method import Method
from kernels.methods.stock import Stock

POINTS = 4096
# A method whose error is at most this times that of invact counts as equally good; invact's own formulas are within
# 2 % of the error floor.
SLACK = 1.1
FORWARD_AD = ForwardDerivative()


@cache
def derivative_error(function: str, params: tuple[tuple[str, float], ...], dtype: torch.dtype, method: Method) -> float:
    """Root mean square of the error of f'(x) for x from N(0, 1), by running the kernel in that dtype.

    x: 4096 quantiles, rounded to the dtype; f' is compared with PyTorch's in float64.
    """
    normal = torch.special.ndtri((torch.arange(POINTS, dtype=torch.float64, device="cpu") + 0.5) / POINTS).to(dtype)
    derivative = _derivative(lambda x: activation(function, x, **method.arguments(), **dict(params)), normal)
    exact = _derivative(lambda x: activation(function, x, **Stock().arguments(), **dict(params)), normal.double())
    return float((derivative.double() - exact).square().mean().sqrt())


def _derivative(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.clone().requires_grad_()
        y = run(x)
        (derivative,) = torch.autograd.grad(y, x, torch.ones_like(y))
    return derivative


def error_of(function: Function, dtype: torch.dtype, method: Method) -> float:
    """`derivative_error` of a site's function, outside of the caller's fake mode and autocast."""
    with private.unset_fake_temporarily(), torch.autocast("cpu", enabled=False):
        return derivative_error(function.name, tuple(function.parameters.items()), dtype, method)


def error_bound(function: Function, dtype: torch.dtype, bound: float | None) -> float:
    """The bound on the error of f'; by default that of invact, or of forward-ad where invact does not apply.

    In float64 it is that of forward-ad: invact's formulas are those of float32, with a larger error than float64's.
    """
    if bound is not None:
        return bound
    if dtype == torch.float64:
        return SLACK * error_of(function, dtype, FORWARD_AD)
    try:
        return SLACK * error_of(function, dtype, FromOutput())
    except KernelError:
        return SLACK * error_of(function, dtype, FORWARD_AD)


def methods_within(function: Function, dtype: torch.dtype, bound: float | None) -> list[Method]:
    """The methods that meet the bound: of forward-ad, invact, and fewbit with the fewest bits that do."""
    limit = error_bound(function, dtype, bound)
    methods: list[Method] = [method for method in (FORWARD_AD, FromOutput()) if _meets(function, dtype, method, limit)]
    few_bits = map(FewBit, range(1, MAX_BITS + 1))
    return methods + [method for method in few_bits if _meets(function, dtype, method, limit)][:1]


def _meets(function: Function, dtype: torch.dtype, method: Method, limit: float) -> bool:
    try:
        return error_of(function, dtype, method) <= limit
    except KernelError:  # no table: f has these parameters, or f' is unbounded
        return False
