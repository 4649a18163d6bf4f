"""Any function of the catalogue by its name, with PyTorch's autograd: what the functions and modules call."""

from collections.abc import Mapping, Sequence
from os import PathLike, fspath

import torch
import torch.fx
from torch import Tensor

from actfit.kernels.autograd import elementwise
from actfit.kernels.engine.elements import dtype_name
from actfit.kernels.errors import KernelError
from actfit.kernels.methods.registry import DEFAULT
from actfit.kernels.methods.stock import Stock
from actfit.kernels.stock import STOCK, stock_runs
from actfit.kernels.validate import check_range, check_strided, kernel_for, numbers_for

Path = str | PathLike[str]


@torch.compiler.allow_in_graph
def _apply(
    input: Tensor,
    function: str,
    params: Mapping[str, float],
    method: str,
    bits: int | None,
    coefficients: str | None,
    stock: bool,
) -> Tensor:
    """Check the arguments, then compute the function.

    torch.compile puts this call into its graph as it is, and autograd runs through it. If Dynamo traced into it, it
    would not accept numbers that vary, and would miss saved tensors that are changed in place.
    """
    check_strided("input", input)
    params = {name: float(value) if isinstance(value, torch.SymFloat) else value for name, value in params.items()}
    bits = int(bits) if isinstance(bits, torch.SymInt) else bits
    spec, values = kernel_for(function, params, method, bits, coefficients)
    if isinstance(spec.method, Stock):
        if input.is_floating_point():
            for name, value in zip(spec.function.parameters, values, strict=True):
                check_range(name, value, input.dtype)
        return _stock(spec.function.name, input, values)
    numbers = numbers_for(spec, values, input.dtype)
    if stock:
        return _stock(spec.function.name, input, values)
    spec.method.check_dtype(spec.function, dtype_name(input.dtype))
    return elementwise(input, spec.key, numbers)


@torch.fx.wrap  # in a traced graph it stays one call
def activation(
    function: str,
    input: Tensor,
    *,
    method: str = DEFAULT,
    bits: int | None = None,
    coefficients: Path | None = None,
    **params: float,
) -> Tensor:
    """Any function of the catalogue by its name.

    Parameters
    ----------
    function
        Its name.
    input
        The tensor.
    method
        The method by which it saves, as for all functions here.
    bits
        Of a few-bit table, or of invact.
    coefficients
        A few-bit table of the user's own: the path of a file.
    **params
        The function's parameters; by default the catalogue's values.

    Raises
    ------
    KernelError
        For invalid arguments, with the reason.
    """
    if not isinstance(input, Tensor):
        raise KernelError(f"input must be a tensor, got {type(input).__name__}")
    file = fspath(coefficients) if isinstance(coefficients, PathLike) else coefficients
    return _apply(input, function, params, method, bits, file, stock_runs(input))


def _stock(function: str, input: Tensor, params: Sequence[float]) -> Tensor:
    result: Tensor = STOCK[function](input, *params)
    return result
