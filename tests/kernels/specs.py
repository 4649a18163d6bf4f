"""Kernels by name, also those that users are refused, such as few bits of a function whose f' has no bound."""

from kernels.methods.functions import FUNCTIONS
from kernels.methods.method import KernelSpec, registered
from kernels.methods.registry import ELEMENTWISE, make
from kernels.methods.sign_bit import SignBit


def spec(function: str, method: str, bits: int = 0) -> KernelSpec:
    """bits: 0 but for fewbit."""
    kernel = KernelSpec(FUNCTIONS[function], make(method, {**ELEMENTWISE, SignBit.name: SignBit}, bits=bits or None))
    registered(kernel)
    return kernel
