"""Converts parameters of functions to numbers."""

import torch

from actfit.kernels.errors import KernelError, shown

# For a parameter with x of any dtype: kernels and some functions of torch take float32.
LARGEST, LEAST = torch.finfo(torch.float32).max, torch.finfo(torch.float32).smallest_normal


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
