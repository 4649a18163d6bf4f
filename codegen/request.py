"""What to emit as a module that stands alone: a function, a method, a dtype, and the coefficient file they need."""

from dataclasses import dataclass
from functools import cached_property

from actfit.codegen import elements
from actfit.codegen.closed import CLOSED
from actfit.codegen.function import Function
from actfit.codegen.info import info
from actfit.codegen.steps import code_function, level_function
from actfit.codegen.subject import DTYPES, File, Subject
from actfit.coefficients.schema import Document
from actfit.fitting.errors import InputError
from actfit.kernels.errors import KernelError
from actfit.kernels.methods.few_bit import MAX_INLINE_BITS
from actfit.kernels.methods.from_output import ELEMENT, FINER_ELEMENT
from actfit.kernels.methods.method import KernelSpec, Method
from actfit.kernels.methods.storage import MARKED_OUTPUT, TABLE_CODES


@dataclass(frozen=True)
class Request:
    """What to emit.

    Attributes
    ----------
    subject
        The function, with its coefficient files.
    method
        How forward saves for backward.
    dtype
        One of DTYPES.
    command
        The words of the command line that emits the module, for its header.

    Raises
    ------
    InputError
        For another dtype.
    """

    subject: Subject
    method: Method
    dtype: str
    command: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")

    @cached_property
    def spec(self) -> KernelSpec:
        """The kernel.

        Raises `InputError` for a function that the method cannot serve, and for a missing coefficient file.
        """
        _ = self.file
        try:
            spec = self.method.bind(info(self.subject), self.subject.activation.params)
            self.method.check_dtype(spec.function, self.dtype)
        except KernelError as error:
            raise InputError(str(error)) from None
        if spec.storage is TABLE_CODES:
            alone, bits = "for a module that stands alone", spec.stored_bits
            rule = f"bits must be at most {MAX_INLINE_BITS} {alone}, got {bits}: a larger"
            if bits <= MAX_INLINE_BITS:
                rule = f"method must have emitted code {alone}, got {self.method}: its"
            raise InputError(f"{rule} table is searched in memory, by actfit.functional")
        if spec.storage is MARKED_OUTPUT and self.solution and None in self.solution["branches"][0]["y"]:
            raise InputError(
                f"method {self.method} must have a bounded left branch, got {self.subject.name}: an infinity with its"
                " lowest bit set is no number; use invact"
            )
        return spec

    @property
    def file(self) -> File | None:
        """The coefficient file that the method needs, or None; raises `InputError` where there is no such file."""
        match self.method.fit:
            case "fewbit":
                return self._table()
            case "invact":
                return self._formula()
        return None

    def _table(self) -> File:
        bits, tables = self.method.arguments()["bits"], self.subject.fewbit()
        if bits not in tables:
            fitted = ", ".join(map(str, tables)) or "none"
            raise InputError(
                f"bits must be one that {self.subject.name} has a table for ({fitted}), got {bits}; make one: actfit"
                " fewbit, and give it by --coefficients"
            )
        return tables[bits]

    def _formula(self) -> File | None:
        subject, bits = self.subject, self.method.arguments().get("bits", 1)
        if not subject.formulas and subject.name in CLOSED:
            return None
        formulas = subject.invact(bits if subject.invact(2) else 1)
        if self.dtype not in formulas:
            two = " --bits 2" * (bits == 2)
            raise InputError(
                f"method {self.method} must have a formula for {subject.name} in {self.dtype}; make one: actfit"
                f" invact{two}, and give it by --coefficients; --method forward-ad needs none"
            )
        return formulas[self.dtype]

    @property
    def solution(self) -> Document:
        """The solution in the file; empty without a file."""
        return {} if self.file is None else self.file.document["solution"]

    def element(self, name: str, target: str) -> Function:
        """The element function of this name, for "triton" or "torch"."""
        subject = self.subject
        if name.startswith("code"):
            return code_function(name, self.solution)
        if name.startswith("level"):
            return level_function(name, self.solution)
        if name == "branch_bit" and (function := elements.branch_bit(subject, target)) is not None:
            return function
        if name == FINER_ELEMENT:
            finer = elements.derivative_from_finer_output(subject, self.dtype, target)
            if finer is not None:
                return finer
        if name == ELEMENT:
            return elements.derivative_from_output(subject, self.dtype, target)
        return {"forward": elements.forward, "derivative": elements.derivative}[name](subject, target)
