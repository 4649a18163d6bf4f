"""Arguments of kernels: dtypes, the emitted element functions, tables on a device, memory for what is saved."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from actfit.kernels.engine.emitted import is_emitted, module_of
from actfit.kernels.engine.planes import plane_bytes
from actfit.kernels.generated.functions import FUNCTIONS
from actfit.kernels.methods.forward_derivative import ForwardDerivative
from actfit.kernels.methods.method import KernelSpec, register_kernel, spec_of
from actfit.kernels.methods.table import Table

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}  # of the same width

# The kernels of f and f', by the function's name; registered here, as torch.compile must not trace the registration.
EXACT_KERNELS = {name: register_kernel(KernelSpec(info, ForwardDerivative())) for name, info in FUNCTIONS.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """The dtype's name without "torch.", such as "float32"."""
    return str(dtype).removeprefix("torch.")


def computed(dtype: torch.dtype) -> torch.dtype:
    """The type that tensors of a dtype are computed in: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def widened(values: Tensor) -> Tensor:
    """The values in the type that they are computed in."""
    return values.to(computed(values.dtype))


@cache
def torch_elements(function: str) -> ModuleType:
    """The emitted PyTorch module of a function of the catalogue, or of one that was registered."""
    if is_emitted(function):
        return module_of(function, "torch", "float32")  # the text is the same for all dtypes
    return import_module(f"actfit.kernels.generated.{function}_torch")


@cache
def loop_element(function: str) -> Callable[..., None] | None:
    """The emitted loop of a function over its outputs; None where it has none. Takes Numba."""
    name = f"actfit.kernels.generated.{function}_loops"
    if find_spec(name) is None:
        return None
    loop: Callable[..., None] = import_module(name).from_output
    return loop


@cache
def triton_elements(key: str, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """FORWARD, ENCODE and DECODE of a kernel."""
    spec = spec_of(key)
    name = spec.function.name
    if is_emitted(name):
        module = module_of(name, "triton", "float32" if dtype == torch.float64 else dtype_name(dtype))
    else:
        module = import_module(f"actfit.kernels.generated.{name}_triton")
    forward, encode, decode = (getattr(module, name) for name in spec.elements(dtype_name(dtype)))
    return forward, encode, decode


def table_of(spec: KernelSpec) -> Table:
    """The few-bit table of a kernel that has one."""
    table = spec.method.table(spec.function)
    if table is None:
        raise RuntimeError(f"{spec.key} has no table")
    return table


@cache
def device_table(key: str, device: torch.device) -> Tensor:
    """`Table.flat` as a float32 tensor, made once for each device."""
    return torch.tensor(table_of(spec_of(key)).flat(), dtype=torch.float32, device=device)


def allocate(spec: KernelSpec, x: Tensor) -> Tensor:
    """Uninitialised memory for what is saved beside the output: a tensor like x, bit planes, or no elements."""
    if spec.storage.like_input:
        return torch.empty_like(x, dtype=getattr(torch, spec.method.stored_dtype(dtype_name(x.dtype))))
    shape = (spec.stored_bits, plane_bytes(x.numel())) if spec.stored_bits else (0,)
    return x.new_empty(shape, dtype=torch.uint8)
