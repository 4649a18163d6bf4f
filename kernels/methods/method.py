"""`Method`, and `KernelSpec`, a method for one function, as the runtime, codegen and reports use them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from actfit.kernels.errors import KernelError, shown
from actfit.kernels.methods.function_info import FunctionInfo
from actfit.kernels.methods.storage import TABLE_CODES, Storage
from actfit.kernels.methods.table import Table

ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def is_width(bits: object, widths: range) -> bool:
    """Whether bits are one of the widths; True and False are no numbers here."""
    return isinstance(bits, int) and not isinstance(bits, bool) and bits in widths


def check_bits(bits: object, widths: range) -> None:
    """Raise KernelError for bits that are not one of the widths."""
    if not is_width(bits, widths):
        raise KernelError(f"bits must be a whole number from {widths[0]} to {widths[-1]}, got {shown(bits)}")


class Elements(NamedTuple):
    """Names of element functions, without a dtype: what forward computes, what it encodes, what backward decodes."""

    forward: str
    encode: str
    decode: str


@dataclass(frozen=True)
class Method(ABC):
    """One way to bring f'(x) from forward to backward, with its options as fields."""

    name: ClassVar[str]  # what users call it
    options: ClassVar[tuple[str, ...]] = ()  # names of its arguments
    fit: ClassVar[str] = ""  # the kind of coefficient files behind its element functions, as "fewbit"; "": none
    widths: ClassVar[range] = range(0)  # of the option bits; empty without such an option

    @abstractmethod
    def storage(self, function: FunctionInfo) -> Storage:
        """What forward leaves to backward."""

    @abstractmethod
    def elements(self, function: FunctionInfo) -> Elements:
        """The element functions that kernels call."""

    def bind(self, function: FunctionInfo, parameters: Mapping[str, float]) -> "KernelSpec":
        """The method for one function; raises KernelError as `check` does."""
        self.check(function, parameters)
        return KernelSpec(function, self)

    def check(self, function: FunctionInfo, parameters: Mapping[str, float]) -> None:  # noqa: B027 - nothing refused
        """Raise KernelError, with the reason, for a function or parameters that it cannot serve; see also `refusal`."""

    def check_dtype(self, function: FunctionInfo, dtype: str) -> None:  # noqa: B027 - nothing refused
        """Raise KernelError for tensors of a dtype that the method has no kernel for."""

    def table(self, function: FunctionInfo) -> Table | None:
        """The table of the codes, which the storages CODES and TABLE_CODES read; only for a bound method."""
        return None

    def refusal(self, function: FunctionInfo) -> str:
        """The reason to refuse the method to users for a function that `check` accepts, as it would serve them badly;
        or ""."""
        return ""

    def stored_bits(self, function: FunctionInfo) -> int:
        """Packed bits an element."""
        return int(self.storage(function).packed)

    def stored_dtype(self, dtype: str) -> str:
        """The dtype of a stored tensor like the input, see `Storage.like_input`."""
        return dtype

    def rounds_parameters(self, function: FunctionInfo) -> bool:
        """Whether kernels take parameters rounded to the dtype of the tensor."""
        return function.rounded_for == "x"

    def arguments(self) -> dict[str, Any]:
        """The method as `actfit.functional` and `actfit.nn` take it."""
        return {"method": self.name}

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class KernelSpec:
    """A function and a method that serves it: one kernel for forward and one for backward."""

    function: FunctionInfo
    method: Method

    @property
    def key(self) -> str:
        """The text by which ops take the kernel; under torch.compile it is a constant of the graph."""
        return f"{self.function.name}: {self.method}"

    @property
    def storage(self) -> Storage:
        """What forward leaves to backward."""
        return self.method.storage(self.function)

    @property
    def stored_bits(self) -> int:
        """Packed bits an element."""
        return self.method.stored_bits(self.function)

    def elements(self, dtype: str) -> Elements:
        """Names of the element functions in `actfit.kernels.generated`; that of forward instead of those not needed."""
        forward, encode, decode = self.method.elements(self.function)
        return Elements(*(self.function.element(name or forward, dtype) for name in (forward, encode, decode)))

    def constants(self, dtype: str) -> dict[str, Any]:
        """The constants of `actfit.kernels.engine.templates.elementwise`, but the functions of one element and ROWS."""
        table = self.method.table(self.function) if self.storage is TABLE_CODES else None
        return {
            "STORAGE": self.storage.name,
            "MINIMUM": self.function.minimum,
            "CUT": self.function.cuts.get(dtype),
            "BITS": self.stored_bits,
            "STEPS": 0 if table is None else table.steps,
        }

    def stored_bytes(self, dtype: str) -> float:
        """Bytes an element that are stored beside the output."""
        whole = ITEMSIZE[self.method.stored_dtype(dtype)] if self.storage.like_input else 0
        return whole + self.stored_bits / 8

    def moved_bytes(self, direction: str, dtype: str) -> float:
        """Bytes an element that "forward" or "backward" reads and writes.

        Forward reads x and writes y, backward reads the gradient of y and writes that of x; both move what is stored.
        A table in memory is not counted: it stays in the cache.
        """
        tensors = 3 if direction == "backward" and self.storage.keeps_output else 2
        return tensors * ITEMSIZE[dtype] + self.stored_bytes(dtype)


_SPECS: dict[str, KernelSpec] = {}


def register_kernel(spec: KernelSpec) -> str:
    """Register a kernel; the result is its key, by which `spec_of` returns it in this process."""
    _SPECS.setdefault(spec.key, spec)
    return spec.key


def spec_of(key: str) -> KernelSpec:
    """The kernel of a key; raises KernelError for one that was not registered in this process."""
    if key not in _SPECS:
        raise KernelError(f"kernel must be one that was made in this process, got {key!r}; call its function first")
    return _SPECS[key]
