"""stock: PyTorch's own function, which saves its input, or its output where f' follows from that exactly."""

from dataclasses import dataclass
from typing import ClassVar, NoReturn

from kernels.methods.function_info import FunctionInfo
from kernels.methods.method import Method


@dataclass(frozen=True)
class Stock(Method):
    """No kernel of this project runs."""

    name: ClassVar[str] = "stock"
    stock: ClassVar[bool] = True

    def storage(self, function: FunctionInfo) -> NoReturn:
        raise NotImplementedError("stock has no kernel here")

    elements = storage
