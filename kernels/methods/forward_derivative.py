"""forward-ad: forward computes f'(x), too, and stores it; backward multiplies. Exact up to one rounding."""

from dataclasses import dataclass
from typing import ClassVar

from actfit.kernels.methods.function_info import FunctionInfo
from actfit.kernels.methods.method import Elements, Method
from actfit.kernels.methods.storage import DERIVATIVE, Storage


@dataclass(frozen=True)
class ForwardDerivative(Method):
    """f'(x), stored as a tensor like x."""

    name: ClassVar[str] = "forward-ad"

    def storage(self, function: FunctionInfo) -> Storage:
        return DERIVATIVE

    def elements(self, function: FunctionInfo) -> Elements:
        return Elements("forward", "derivative", "")
