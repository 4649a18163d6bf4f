"""The base class of methods whose codes come from a table, in the package or in a user's file."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from actfit.coefficients import CoefficientError
from actfit.kernels.errors import KernelError
from actfit.kernels.methods.function_info import FunctionInfo
from actfit.kernels.methods.method import Elements, KernelSpec, Method
from actfit.kernels.methods.storage import TABLE_CODES, Storage
from actfit.kernels.methods.table import Table, own_document


@dataclass(frozen=True)
class FromTable(Method):
    """A code of x, whose `table` has what codes stand for."""

    options: ClassVar[tuple[str, ...]] = ("bits", "coefficients")
    values: ClassVar[str]  # what codes stand for, under "solution" of the file
    too_few: ClassVar[str]  # the message for a file with one value; {path}

    bits: int | None = None  # of the code, as asked for; None: those of the file
    coefficients: str = ""  # the path of a file of the user's own, or ""; once bound, path#digest

    def storage(self, function: FunctionInfo) -> Storage:
        return TABLE_CODES

    def elements(self, function: FunctionInfo) -> Elements:
        return Elements("forward", "", "")

    def stored_bits(self, function: FunctionInfo) -> int:
        return self.table(function).bits

    @abstractmethod
    def table(self, function: FunctionInfo) -> Table:
        """The table; only for a bound method."""

    def bind(self, function: FunctionInfo, parameters: Mapping[str, float]) -> KernelSpec:
        """The table's kernel; see `Method.bind`."""
        if self.coefficients:
            return KernelSpec(function, self._bound_to_file(function, parameters))
        return super().bind(function, parameters)

    def _bound_to_file(self, function: FunctionInfo, parameters: Mapping[str, float]) -> Self:
        """The method with the bits of the user's file, and path#digest; the table is read now, and cached.

        Raises KernelError for a file that cannot be read or is not of the function, and for other bits than the file's.
        """
        document = own_document(self.coefficients, self.fit, function, parameters)
        if len(document["solution"][self.values]) < 2:
            raise KernelError(self.too_few.format(path=self.coefficients))
        stored = document["options"]["bits"]
        if self.bits not in (None, stored):
            raise KernelError(f"bits must be those of the file, {stored}, got {self.bits}; leave them out")
        bound = replace(self, bits=stored, coefficients=f"{self.coefficients}#{document['sha256'][:16]}")
        try:
            bound.table(function)
        except CoefficientError as error:
            raise KernelError(f"coefficients must be of {function.name}: {error}") from None
        return bound
