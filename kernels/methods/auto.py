"""auto: at each site of a model `convert` measures, and takes the method that saves least within an error bound."""

import math
from dataclasses import dataclass
from typing import ClassVar

from kernels.errors import KernelError
from kernels.methods.stock import Stock


@dataclass(frozen=True)
class Auto(Stock):
    """Stock, until `convert` sets another method.

    Attributes
    ----------
    max_derivative_error
        Bound on the root mean square error of f'(x) for x from N(0, 1); None: the error that invact has in the dtype.
    """

    name: ClassVar[str] = "auto"
    options: ClassVar[tuple[str, ...]] = ("max_derivative_error",)
    serves_any_function: ClassVar[bool] = True

    max_derivative_error: float | None = None

    def __post_init__(self) -> None:
        bound = self.max_derivative_error
        if bound is None:
            return
        if not isinstance(bound, int | float) or isinstance(bound, bool) or not 0 <= bound < math.inf:
            raise KernelError(f"max_derivative_error must be a number of 0 or more, got {bound!r}")
