"""What `actfit.nn.ActLinear` saves with `bits`: a joint code of x, by which backward looks up f'(x) and f(x)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from actfit.coefficients import CoefficientError
from actfit.kernels.errors import KernelError
from actfit.kernels.methods.from_table import FromTable
from actfit.kernels.methods.function_info import FunctionInfo
from actfit.kernels.methods.method import check_bits
from actfit.kernels.methods.table import Table, read_table

SHIPPED_BITS = range(2, 9)
COMPONENTS = ("derivatives", "outputs")


@dataclass(frozen=True)
class Joint(FromTable):
    """One component of a joint code; not for users: only `ActLinear` needs both."""

    name: ClassVar[str] = "joint"
    fit: ClassVar[str] = "joint"
    widths: ClassVar[range] = SHIPPED_BITS
    values: ClassVar[str] = "outputs"
    too_few: ClassVar[str] = "coefficients must have two intervals or more, got one ({path})"

    component: str = COMPONENTS[0]  # what its codes stand for

    def check(self, function: FunctionInfo, parameters: Mapping[str, float]) -> None:
        check_bits(self.bits, self.widths)
        try:
            self.table(function)
        except CoefficientError:
            raise KernelError(
                f"bits must go with a function that has joint codes, got {function.name}; make one: actfit"
                f" fewbit --fn {function.name} --bits {self.bits} --joint --out mine.json, and give"
                " coefficients='mine.json'"
            ) from None

    def table(self, function: FunctionInfo) -> Table:
        return read_table(function.name, f"joint-{self.bits}bit", self.coefficients, self.component)

    def __str__(self) -> str:
        file = [self.coefficients] if self.coefficients else []
        return ", ".join([self.name, f"{self.bits} bits", self.component, *file])
