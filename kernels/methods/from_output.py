"""f'(x) from the output, which the next layer saves anyway.

invact saves one or two bits beside it where y has two preimages. invact-precision-bit has the bit in the lowest bit of
the output, so that forward changes by 1 ulp at most. `actfit.nn.ActLinear` saves y - min f with the bit in its sign.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from actfit.kernels.errors import KernelError, shown
from actfit.kernels.methods.function_info import FunctionInfo
from actfit.kernels.methods.method import Elements, Method, is_width
from actfit.kernels.methods.storage import (
    BRANCH_AND_ROUNDING,
    BRANCH_BIT,
    MARKED_OUTPUT,
    OUTPUT,
    SIGNED_OUTPUT,
    Storage,
)

ELEMENT, FINER_ELEMENT = "derivative_from_output", "derivative_from_finer_output"
BITS = range(1, 3)
NARROW = ("float16", "bfloat16")  # dtypes of y that are narrower than float32, in which f is computed


@dataclass(frozen=True)
class FromOutput(Method):
    """f'(x) = g(y, branch of x); the branch takes one packed bit, and none where f is monotone."""

    name: ClassVar[str] = "invact"
    options: ClassVar[tuple[str, ...]] = ("bits",)
    fit: ClassVar[str] = "invact"
    widths: ClassVar[range] = BITS

    # At most, beside y. 1: the branch; 2: also which way y was rounded, where that makes f' more accurate.
    bits: int = 1

    def __post_init__(self) -> None:
        if not is_width(self.bits, BITS):
            raise KernelError(
                f"bits must be 1 or 2 for method={self.name!r}, got {shown(self.bits)}: the branch of x, and which way"
                " y was rounded; method='fewbit' takes more"
            )

    def storage(self, function: FunctionInfo) -> Storage:
        if function.branches == 1:
            return OUTPUT
        return BRANCH_AND_ROUNDING if self.bits == 2 and function.has(FINER_ELEMENT) else BRANCH_BIT

    def elements(self, function: FunctionInfo) -> Elements:
        encode = "branch_bit" if "branch_bit" in function.elements else ""
        finer = self.storage(function) is BRANCH_AND_ROUNDING
        return Elements("forward", encode, FINER_ELEMENT if finer else ELEMENT)

    def stored_bits(self, function: FunctionInfo) -> int:
        return 2 if self.storage(function) is BRANCH_AND_ROUNDING else super().stored_bits(function)

    def check(self, function: FunctionInfo, parameters: Mapping[str, float]) -> None:
        for name, least in function.lower_limits.items():
            if not parameters[name] >= least:
                raise KernelError(
                    f"{name} must be at least {least:g} for method={self.name!r}, got {parameters[name]:g}: below, the"
                    f" output of {function.name} does not tell f'; use method='forward-ad'"
                )

    def check_dtype(self, function: FunctionInfo, dtype: str) -> None:
        if self.storage(function) is BRANCH_AND_ROUNDING and dtype not in NARROW:
            raise KernelError(
                f"bits must be 1 for {function.name} in {dtype} with method={self.name!r}, got 2: the second bit tells"
                " which way y was rounded to float16 or bfloat16, and here it is not; leave out bits"
            )

    def rounds_parameters(self, function: FunctionInfo) -> bool:
        return function.rounded_for in ("x", "y")

    def arguments(self) -> dict[str, Any]:
        return {"method": self.name, **({"bits": self.bits} if self.bits > 1 else {})}

    def __str__(self) -> str:
        return self.name if self.bits == 1 else f"{self.name}, {self.bits} bits"


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
