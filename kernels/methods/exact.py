"""exact: a gated activation f(a)·b saves a and b alone, and computes f(a) and f'(a) again in backward."""

from dataclasses import dataclass
from typing import ClassVar

from actfit.kernels.methods.stock import Stock


@dataclass(frozen=True)
class Exact(Stock):
    """For `actfit.functional.swiglu` and the other gates; PyTorch's own function runs where nothing is saved."""

    name: ClassVar[str] = "exact"
