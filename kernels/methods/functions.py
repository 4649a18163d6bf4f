"""The functions that have kernels."""

from actfit.kernels.errors import KernelError
from actfit.kernels.generated.functions import FUNCTIONS as FUNCTIONS
from actfit.kernels.methods.function_info import FunctionInfo


def function_info(name: str) -> FunctionInfo:
    """The properties of a function.

    Raises
    ------
    KernelError
        For a name that is not in the catalogue.
    """
    if name not in FUNCTIONS:
        raise KernelError(f"function must be one of {', '.join(FUNCTIONS)}, got {name!r}")
    return FUNCTIONS[name]
