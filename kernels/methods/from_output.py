"""invact: f'(x) from the output, which the next layer saves anyway, and one bit where y has two preimages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kernels.errors import KernelError
from kernels.methods.function_info import FunctionInfo
from kernels.methods.method import Elements, Method
from kernels.methods.storage import BRANCH_BIT, OUTPUT, Storage


@dataclass(frozen=True)
class FromOutput(Method):
    """f'(x) = g(y, branch of x); the branch takes one packed bit, and none where f is monotone."""

    name: ClassVar[str] = "invact"
    fit: ClassVar[str] = "invact"

    def storage(self, function: FunctionInfo) -> Storage:
        return BRANCH_BIT if function.branches == 2 else OUTPUT

    def elements(self, function: FunctionInfo) -> Elements:
        encode = "branch_bit" if "branch_bit" in function.elements else ""
        return Elements("forward", encode, "derivative_from_output")

    def check(self, function: FunctionInfo, parameters: Mapping[str, float]) -> None:
        for name, least in self.lower_limits(function).items():
            if not parameters[name] >= least:
                raise KernelError(
                    f"{name} must be at least {least:g} for method={self.name!r}, got {parameters[name]:g}: below, the"
                    f" output of {function.name} does not tell f'; use method='forward-ad'"
                )

    def lower_limits(self, function: FunctionInfo) -> Mapping[str, float]:
        return function.lower_limits

    def parameters_as_held(self, function: FunctionInfo) -> bool:
        return function.rounds_parameters
