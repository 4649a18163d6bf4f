"""stock: PyTorch's own function, which saves its input, or its output where f' follows from that exactly."""

from dataclasses import dataclass
from typing import ClassVar

from actfit.kernels.methods.method import WithoutKernel


@dataclass(frozen=True)
class Stock(WithoutKernel):
    """No kernel of this project runs."""

    name: ClassVar[str] = "stock"
    stock: ClassVar[bool] = True
