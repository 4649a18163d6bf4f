"""What `kernels.ActLinear` saves with `bits`: a joint code of x, by which backward looks up f'(x) and f(x)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from coefficients import CoefficientError
from kernels.errors import KernelError, shown
from kernels.methods.function_info import FunctionInfo
from kernels.methods.method import Elements, KernelSpec, Method
from kernels.methods.storage import TABLE_CODES, Storage
from kernels.methods.table import Table, own_document, read_joint

SHIPPED_BITS = range(2, 9)
COMPONENTS = ("derivatives", "outputs")


@dataclass(frozen=True)
class Joint(Method):
    """One component of a joint code; not for users: only `ActLinear` needs both.

    Attributes
    ----------
    bits
        Bits of the code; None: those of the file.
    coefficients
        The path of a file of the user's own, or ""; once bound, path#digest.
    component
        The values of codes: "derivatives" or "outputs".
    """

    name: ClassVar[str] = "joint"
    options: ClassVar[tuple[str, ...]] = ("bits", "coefficients")
    fit: ClassVar[str] = "joint"
    widths: ClassVar[range] = SHIPPED_BITS
    default_parameters_only: ClassVar[bool] = True

    bits: int | None = None
    coefficients: str = ""
    component: str = COMPONENTS[0]

    def storage(self, function: FunctionInfo) -> Storage:
        return TABLE_CODES

    def elements(self, function: FunctionInfo) -> Elements:
        return Elements("forward", "", "")

    def bind(self, function: FunctionInfo, parameters: Mapping[str, float]) -> KernelSpec:
        """The kernel of one component; see `Method.bind`."""
        if self.coefficients:
            document = own_document(self.coefficients, self.fit, function, parameters)
            stored = document["options"]["bits"]
            if self.bits not in (None, stored):
                raise KernelError(f"bits must be those of the file, {stored}, got {self.bits}; leave them out")
            if len(document["solution"]["outputs"]) < 2:
                raise KernelError(f"coefficients must have two intervals or more, got one ({self.coefficients})")
            bound = Joint(stored, f"{self.coefficients}#{document['sha256'][:16]}", self.component)
            try:
                bound.table(function)  # read now, and cached
            except CoefficientError as error:
                raise KernelError(f"coefficients must be of {function.name}: {error}") from None
            return KernelSpec(function, bound)
        if not isinstance(self.bits, int) or isinstance(self.bits, bool) or self.bits not in self.widths:
            raise KernelError(f"bits must be a whole number from 2 to 8, got {shown(self.bits)}")
        try:
            self.table(function)
        except CoefficientError:
            raise KernelError(
                f"bits must go with a function that has joint codes, got {function.name}; make one: python -m"
                f" fitting.fewbit --fn {function.name} --bits {self.bits} --joint --out mine.json, and give"
                " coefficients='mine.json'"
            ) from None
        return KernelSpec(function, self)

    def stored_bits(self, function: FunctionInfo) -> int:
        return self.table(function).bits

    def table(self, function: FunctionInfo) -> Table:
        """The table; only for a bound method."""
        return read_joint(function.name, self.bits or 0, self.coefficients, self.component)

    def __str__(self) -> str:
        file = [self.coefficients] if self.coefficients else []
        return ", ".join([self.name, f"{self.bits} bits", self.component, *file])
