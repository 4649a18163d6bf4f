"""fewbit: a code of x in b bits; backward looks up its level, the approximation of f' in an interval of x."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from coefficients import CoefficientError
from kernels.errors import KernelError, shown
from kernels.methods.function_info import FunctionInfo
from kernels.methods.method import Elements, KernelSpec, Method
from kernels.methods.storage import CODES, TABLE_CODES, Storage
from kernels.methods.table import Table, own_document, read_table

DEFAULT_BITS = 3
MAX_BITS = 8
WRITTEN_BITS = 4  # tables of at most these bits are in the emitted text; larger ones are searched in memory


@dataclass(frozen=True)
class FewBit(Method):
    """The code of x.

    Attributes
    ----------
    bits
        Bits of the table, as asked for; None: 3, or those of the file.
    coefficients
        The path of a table of the user's own, or ""; once bound, path#digest.
    """

    name: ClassVar[str] = "fewbit"
    options: ClassVar[tuple[str, ...]] = ("bits", "coefficients")
    fit: ClassVar[str] = "fewbit"
    widths: ClassVar[range] = range(1, MAX_BITS + 1)
    default_parameters_only: ClassVar[bool] = True

    bits: int | None = None
    coefficients: str = ""

    def __post_init__(self) -> None:
        if self.bits is None and not self.coefficients:
            object.__setattr__(self, "bits", DEFAULT_BITS)
        bits = self.bits
        if bits is not None and (not isinstance(bits, int) or isinstance(bits, bool) or bits not in self.widths):
            raise KernelError(f"bits must be a whole number from 1 to {MAX_BITS}, got {shown(bits)}")

    def bind(self, function: FunctionInfo, parameters: Mapping[str, float]) -> KernelSpec:
        """The table's kernel; see `Method.bind`."""
        bound = self._own_table(function, parameters) if self.coefficients else self._packaged(function, parameters)
        return KernelSpec(function, bound)

    def unfit(self, function: FunctionInfo) -> str:
        if function.bounded_derivative or self.coefficients:
            return ""
        return (
            f"method='fewbit' must have a function whose f' has a bound, got {function.name}: the last level of a table"
            " is as good as none beyond it; use method='invact' or 'forward-ad', or fit a table for the range of your"
            f" data: python -m fitting.fewbit --fn {function.name} --bits {self.bits} --domain A B --out mine.json, and"
            " give coefficients='mine.json'"
        )

    def storage(self, function: FunctionInfo) -> Storage:
        return TABLE_CODES if self.coefficients or (self.bits or 0) > WRITTEN_BITS else CODES

    def elements(self, function: FunctionInfo) -> Elements:
        if self.storage(function) is TABLE_CODES:
            return Elements("forward", "", "")
        return Elements("forward", f"code_{self.bits}bit", f"level_{self.bits}bit")

    def stored_bits(self, function: FunctionInfo) -> int:
        return self.table(function).bits if self.coefficients else function.tables[self.bits or 0]

    def table(self, function: FunctionInfo) -> Table:
        """The table; only for a bound method."""
        return read_table(function.name, self.bits or 0, self.coefficients)

    def arguments(self) -> dict[str, Any]:
        file = {"coefficients": self.coefficients} if self.coefficients else {}
        return {"method": self.name, "bits": self.bits, **file}

    def __str__(self) -> str:
        bits = [f"{self.bits} bit{'s' * (self.bits > 1)}"] if self.bits else []
        return ", ".join([self.name, *bits, *([self.coefficients] if self.coefficients else [])])

    def _packaged(self, function: FunctionInfo, parameters: Mapping[str, float]) -> "FewBit":
        if parameters != function.parameters:
            given = ", ".join(f"{name}={value:g}" for name, value in parameters.items())
            flags = " ".join(f"--param {name}={value!r}" for name, value in parameters.items())
            raise KernelError(
                f"method='fewbit' has tables for the default parameters of {function.name}, got {given}; make one:"
                f" python -m fitting.fewbit --fn {function.name} {flags} --bits {self.bits} --out mine.json, and give"
                " coefficients='mine.json'"
            )
        return self

    def _own_table(self, function: FunctionInfo, parameters: Mapping[str, float]) -> "FewBit":
        path = self.coefficients
        document = own_document(path, self.fit, function, parameters)
        if len(document["solution"]["levels"]) < 2:
            raise KernelError(
                f"coefficients must have two levels or more, got one ({path}): f' is constant; use 'forward-ad'"
            )
        stored = document["options"]["bits"]
        if self.bits is not None and self.bits != stored:
            raise KernelError(f"bits must be those of the file, {stored}, got {self.bits}; leave them out")
        bound = FewBit(stored, f"{path}#{document['sha256'][:16]}")
        try:
            bound.table(function)  # read now, and cached
        except CoefficientError as error:
            raise KernelError(f"coefficients must be of {function.name}: {error}") from None
        return bound
