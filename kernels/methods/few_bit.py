"""fewbit: a code of x in b bits; backward looks up its level, the approximation of f' in an interval of x."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from actfit.kernels.errors import KernelError
from actfit.kernels.methods.from_table import FromTable
from actfit.kernels.methods.function_info import FunctionInfo
from actfit.kernels.methods.method import Elements, check_bits
from actfit.kernels.methods.storage import CODES, TABLE_CODES, Storage
from actfit.kernels.methods.table import Table, read_table

DEFAULT_BITS = 3
MAX_BITS = 8
MAX_INLINE_BITS = 4  # of tables that are written into emitted code; larger ones are searched in memory


@dataclass(frozen=True)
class FewBit(FromTable):
    """The code of x; without `bits` and a file: in 3 bits."""

    name: ClassVar[str] = "fewbit"
    fit: ClassVar[str] = "fewbit"
    widths: ClassVar[range] = range(1, MAX_BITS + 1)
    values: ClassVar[str] = "levels"
    too_few: ClassVar[str] = (
        "coefficients must have two levels or more, got one ({path}): f' is constant; use 'forward-ad'"
    )

    def __post_init__(self) -> None:
        if self.bits is None and not self.coefficients:
            object.__setattr__(self, "bits", DEFAULT_BITS)
        if self.bits is not None:
            check_bits(self.bits, self.widths)

    def check(self, function: FunctionInfo, parameters: Mapping[str, float]) -> None:
        if parameters != function.parameters:
            given = ", ".join(f"{name}={value:g}" for name, value in parameters.items())
            flags = " ".join(f"--param {name}={value!r}" for name, value in parameters.items())
            raise KernelError(
                f"method='fewbit' has tables for the default parameters of {function.name}, got {given}; make one:"
                f" actfit fewbit --fn {function.name} {flags} --bits {self.bits} --out mine.json, and give"
                " coefficients='mine.json'"
            )

    def refusal(self, function: FunctionInfo) -> str:
        if function.bounded_derivative or self.coefficients:
            return ""
        return (
            f"method='fewbit' must have a function whose f' has a bound, got {function.name}: the last level of a table"
            " is as good as none beyond it; use method='invact' or 'forward-ad', or fit a table for the range of your"
            f" data: actfit fewbit --fn {function.name} --bits {self.bits} --domain A B --out mine.json, and"
            " give coefficients='mine.json'"
        )

    def storage(self, function: FunctionInfo) -> Storage:
        return TABLE_CODES if self.coefficients or (self.bits or 0) > MAX_INLINE_BITS else CODES

    def elements(self, function: FunctionInfo) -> Elements:
        if self.storage(function) is CODES:
            return Elements("forward", f"code_{self.bits}bit", f"level_{self.bits}bit")
        return super().elements(function)

    def stored_bits(self, function: FunctionInfo) -> int:
        return super().stored_bits(function) if self.coefficients else function.tables[self.bits or 0]

    def table(self, function: FunctionInfo) -> Table:
        return read_table(function.name, f"fewbit-{self.bits}bit", self.coefficients, "levels")

    def arguments(self) -> dict[str, Any]:
        file = {"coefficients": self.coefficients} if self.coefficients else {}
        return {"method": self.name, "bits": self.bits, **file}

    def __str__(self) -> str:
        bits = [f"{self.bits} bit{'s' * (self.bits > 1)}"] if self.bits else []
        return ", ".join([self.name, *bits, *([self.coefficients] if self.coefficients else [])])
