"""Kernels by name, also those refused to users, such as few bits for a function with unbounded f'."""

from typing import Any

from torch import Tensor

from actfit.kernels.generated.functions import FUNCTIONS
from actfit.kernels.methods.from_output import SignBit
from actfit.kernels.methods.method import KernelSpec, register_kernel
from actfit.kernels.methods.registry import ELEMENTWISE, make


def spec(function: str, method: str, bits: int = 0) -> KernelSpec:
    """The kernel of a function by a method; bits: 0 except for fewbit."""
    kernel = KernelSpec(FUNCTIONS[function], make(method, {**ELEMENTWISE, SignBit.name: SignBit}, bits=bits or None))
    register_kernel(kernel)
    return kernel


def border_of(document: dict[str, Any], y: Tensor) -> Tensor:
    """Where |f(x)| is cut in two by the second bit, in float64, from y and the file of invact with two bits."""
    cut = document["solution"]["cut"]
    return y.double().masked_fill(y.double() == cut["output"], cut["border"]).abs()
