"""What `actfit.nn.ActLinear` saves: y - min f with the branch in its sign, for f' and for the linear layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from actfit.kernels.errors import KernelError
from actfit.kernels.methods.from_output import FromOutput
from actfit.kernels.methods.function_info import FunctionInfo
from actfit.kernels.methods.storage import SIGNED_OUTPUT, Storage


@dataclass(frozen=True)
class SignBit(FromOutput):
    """±(y - min f), plus to the right of the minimum; not for users: only `ActLinear` can recover y from it."""

    name: ClassVar[str] = "invact-sign-bit"
    options: ClassVar[tuple[str, ...]] = ()
    widths: ClassVar[range] = range(0)

    def storage(self, function: FunctionInfo) -> Storage:
        return SIGNED_OUTPUT

    def check(self, function: FunctionInfo, parameters: Mapping[str, float]) -> None:
        super().check(function, parameters)
        if function.branches != 2 or function.minimum is None or function.parameters:
            raise KernelError(
                f"activation must fall to a minimum and rise again, for the sign to tell the branch, got"
                f" {function.name}; Linear after an activation with method='invact' saves as little"
            )
