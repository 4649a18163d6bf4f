"""invact-precision-bit: as invact, with the bit in the lowest bit of the output; forward changes by 1 ulp at most."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from actfit.kernels.errors import KernelError
from actfit.kernels.methods.from_output import FromOutput
from actfit.kernels.methods.function_info import FunctionInfo
from actfit.kernels.methods.storage import MARKED_OUTPUT, Storage


@dataclass(frozen=True)
class PrecisionBit(FromOutput):
    """f'(x) = g(y, branch of x); the lowest bit of y tells the branch."""

    name: ClassVar[str] = "invact-precision-bit"
    options: ClassVar[tuple[str, ...]] = ()
    widths: ClassVar[range] = range(0)

    def storage(self, function: FunctionInfo) -> Storage:
        return MARKED_OUTPUT

    def check(self, function: FunctionInfo, parameters: Mapping[str, float]) -> None:
        super().check(function, parameters)
        if function.branches == 1:
            raise KernelError(
                f"method={self.name!r} must have two branches to tell apart, got {function.name}, whose output alone"
                " tells f'; use method='invact', which saves nothing but the output"
            )
