"""Validates arguments of functions and modules: gives the kernel and the numbers that it takes."""

import math
import operator
import os
from collections.abc import Mapping
from functools import lru_cache
from os import PathLike, fspath

import torch

from actfit.coefficients.functions import ALIASES
from actfit.kernels.engine.elements import DTYPES, dtype_name
from actfit.kernels.errors import KernelError, shown
from actfit.kernels.generated.functions import FUNCTIONS
from actfit.kernels.methods.few_bit import MAX_BITS
from actfit.kernels.methods.from_output import SignBit
from actfit.kernels.methods.joint import COMPONENTS, SHIPPED_BITS, Joint
from actfit.kernels.methods.method import KernelSpec, register_kernel
from actfit.kernels.methods.registry import ELEMENTWISE, make, near
from actfit.kernels.methods.stock import Stock

# For a parameter with x of any dtype: kernels and some functions of torch take float32.
LARGEST, LEAST = torch.finfo(torch.float32).max, torch.finfo(torch.float32).smallest_normal
DIVISORS = {("softplus", "beta"), ("celu", "alpha")}


def kernel_for(
    function: str,
    params: Mapping[str, float],
    method: str,
    bits: int | None = None,
    coefficients: str | PathLike[str] | None = None,
) -> tuple[KernelSpec, tuple[float, ...]]:
    """The kernel for a function and a method, and the function's parameters in their order.

    Raises KernelError for invalid arguments and for what the method does not support, with the reason.
    """
    if not isinstance(function, str):
        raise KernelError(f"function must be a name, got {shown(function)}")
    if not isinstance(method, str):
        raise KernelError(f"method must be a name, got {shown(method)}")
    function = ALIASES.get(function, function)
    values = tuple((name, number(name, value)) for name, value in params.items())
    bits = None if bits is None else _whole_number(bits)
    file = resolved(coefficients)
    if file is None:
        return _kernel_for(function, values, method, bits, None, None)
    state = os.stat(file) if os.path.isfile(file) else None
    written = _FILE_STATES.get(file) if state is None else (state.st_mtime_ns, state.st_size)
    kernel = _kernel_for(function, values, method, bits, file, written)
    if written is not None:
        _FILE_STATES[file] = written
    return kernel


# Time and size of files when they were read: a layer keeps its table after the file is deleted.
_FILE_STATES: dict[str, tuple[int, int]] = {}


def resolved(coefficients: object) -> str | None:
    """The absolute path, as forward may run in another folder; None for none. Raises KernelError for other values."""
    if coefficients is None:
        return None
    if not isinstance(coefficients, str | PathLike) or not fspath(coefficients):
        raise KernelError(f"coefficients must be the path of a file, got {shown(coefficients)}")
    return os.path.abspath(coefficients)


@lru_cache(maxsize=4096, typed=True)
def _kernel_for(
    function: str,
    params: tuple[tuple[str, float], ...],
    method: str,
    bits: int | None,
    file: str | None,
    written: tuple[int, int] | None,
) -> tuple[KernelSpec, tuple[float, ...]]:
    """`kernel_for`, cached as long as the file has the time and size in `written`."""
    if function not in FUNCTIONS:
        hint = near(function, FUNCTIONS) or "; for one of your own: actfit.elementwise(f, coefficients=file)"
        raise KernelError(f"function must be one of {', '.join(FUNCTIONS)}, got {shown(function)}{hint}")
    info = FUNCTIONS[function]
    for name in dict(params):
        if name not in info.parameters:
            takes = ", ".join(info.parameters) or "none"
            raise KernelError(f"parameter must be one that {function} has ({takes}), got {name!r}")
    values = {**info.parameters, **dict(params)}
    _check_parameters(function, values)
    made = make(method, {Stock.name: Stock, **ELEMENTWISE}, bits=bits, coefficients=file)
    if reason := made.refusal(info):
        raise KernelError(reason)
    spec = made.bind(info, values)
    register_kernel(spec)
    return spec, tuple(values.values())


def _check_parameters(function: str, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        if not math.isfinite(value):
            raise KernelError(f"{name} must be finite, got {value}")
        check_range(name, value, torch.float32)
        if value == 0 and (function, name) in DIVISORS:
            raise KernelError(f"{name} must not be 0: {function} divides by it")
        if abs(value) < LEAST and (function, name) in DIVISORS:
            raise KernelError(f"{name} must be at least {LEAST:.3g} in size, got {value:.3g}: {function} divides by it")
    if function == "hardtanh" and values["min_val"] > values["max_val"]:
        raise KernelError(
            f"max_val must be at least min_val, got min_val={values['min_val']:g} and max_val={values['max_val']:g}"
        )
    if function == "softshrink" and values["lambd"] < 0:
        raise KernelError(f"lambd must be at least 0, got {values['lambd']:g}")


def _whole_number(bits: object, least: int = 1) -> int:
    try:
        return operator.index(bits if not isinstance(bits, bool) else None)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        raise KernelError(f"bits must be a whole number from {least} to {MAX_BITS}, got {shown(bits)}") from None


def check_tensor(name: str, value: object) -> None:
    """Raise KernelError for what is not a strided tensor of one of DTYPES."""
    if not isinstance(value, torch.Tensor):
        raise KernelError(f"{name} must be a tensor, got {type(value).__name__}")
    check_strided(name, value)
    if value.dtype not in DTYPES:
        raise KernelError(f"{name} must be a tensor of float16, bfloat16, float32 or float64, got {value.dtype}")


def check_strided(name: str, tensor: torch.Tensor) -> None:
    """Raise KernelError for sparse tensors and the like."""
    if tensor.layout != torch.strided:
        raise KernelError(f"{name} must be a strided tensor, got {tensor.layout}; use .to_dense()")


def sign_bit_kernel(function: str) -> KernelSpec:
    """The kernel that stores ±(y - min f), for `ActLinear`.

    Raises KernelError if f does not have two branches around a minimum, or has parameters.
    """
    info = kernel_for(function, {}, "invact")[0].function
    spec = SignBit().bind(info, info.parameters)
    register_kernel(spec)
    return spec


def joint_kernels(function: str, bits: int | None, coefficients: str | PathLike[str] | None) -> tuple[KernelSpec, ...]:
    """The kernels of both components of a joint code, f' and f, for `ActLinear`.

    Raises KernelError for a function, bits or a file without such a code.
    """
    info = kernel_for(function, {}, "invact")[0].function
    width = None if bits is None else _whole_number(bits, SHIPPED_BITS.start)
    specs = tuple(
        Joint(width, resolved(coefficients) or "", component).bind(info, info.parameters) for component in COMPONENTS
    )
    for spec in specs:
        register_kernel(spec)
    return specs


def numbers_for(spec: KernelSpec, params: tuple[float, ...], dtype: torch.dtype) -> list[float]:
    """The parameters for the kernel; rounded to the dtype if `Method.rounds_parameters` says so.

    Raises KernelError for a dtype without a kernel, and for parameters that are infinite in it.
    """
    if dtype not in DTYPES:
        raise KernelError(f"input must be a tensor of {', '.join(map(dtype_name, DTYPES))}, got {dtype_name(dtype)}")
    for name, value in zip(spec.function.parameters, params, strict=True):
        check_range(name, value, dtype)
    if spec.method.rounds_parameters(spec.function):
        return [float(torch.tensor(value, dtype=torch.float64, device="cpu").to(dtype)) for value in params]
    return list(params)


def number(name: str, value: object) -> float:
    """The value as a float. Raises KernelError if it is not one number."""
    if isinstance(value, torch.Tensor) and value.requires_grad:
        raise KernelError(f"{name} must be a number, got a tensor that wants a gradient, which it would not get")
    # float() accepts some arrays, complex numbers and strings, with or without a warning.
    several, is_complex = getattr(value, "ndim", 0), "complex" in str(getattr(value, "dtype", ""))
    if several or is_complex or isinstance(value, str | bytes | complex):
        raise KernelError(f"{name} must be a number, got {shown(value)}")
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        raise KernelError(f"{name} must be at most {LARGEST:.3g} in size, got {shown(value)}") from None
    except (TypeError, ValueError, RuntimeError):  # RuntimeError for a tensor without data
        raise KernelError(f"{name} must be a number, got {shown(value)}") from None


def check_range(name: str, value: float, dtype: torch.dtype) -> None:
    """Raise KernelError for a parameter that is infinite in the dtype."""
    largest = torch.finfo(dtype).max
    if abs(value) > largest:
        kind = str(dtype).removeprefix("torch.")
        raise KernelError(f"{name} must be at most {largest:.6g} in size, the largest number of {kind}, got {value:g}")
