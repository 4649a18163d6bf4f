"""What runs PyTorch's own functions: stock, and exact of gates."""

from dataclasses import dataclass
from typing import ClassVar, NoReturn

from actfit.kernels.methods.function_info import FunctionInfo
from actfit.kernels.methods.method import Method


@dataclass(frozen=True)
class Stock(Method):
    """PyTorch's own function, which saves its input, or its output where f' follows from that exactly."""

    name: ClassVar[str] = "stock"

    def storage(self, function: FunctionInfo) -> NoReturn:
        raise NotImplementedError(f"{self.name} has no kernel here")

    elements = storage


@dataclass(frozen=True)
class Exact(Stock):
    """A gated activation f(a)·b saves a and b alone, and computes f(a) and f'(a) again in backward; see `gated`.

    PyTorch's own function runs where nothing is saved.
    """

    name: ClassVar[str] = "exact"
