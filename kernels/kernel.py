"""What a call of an op runs: a function, a method and what the method saves; found again by its key, a string.

A string, since that is what an op can be given: under torch.compile it is a constant of the graph.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from coefficients import CoefficientError, load
from coefficients.reference import check_function, check_numbers
from kernels.errors import KernelError
from kernels.names import MAX_BITS as MAX_BITS
from kernels.names import METHODS as METHODS
from kernels.packing import plane_bytes
from kernels.stock import FUNCTIONS

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WRITTEN_BITS = 4  # of a few-bit table that stands in the emitted code; a larger one is searched in memory


@dataclass(frozen=True)
class Kernel:
    """`function` by `method`; fewbit: `bits` as asked for, `file`: a table of one's own, as path#hash."""

    function: str
    method: str
    bits: int = 0
    file: str = ""

    @property
    def key(self) -> str:
        """The op's argument."""
        return "|".join((self.function, self.method, str(self.bits), self.file))

    @property
    def facts(self) -> ModuleType:
        """The function's emitted PyTorch module, with what is known of the function."""
        return facts(self.function)

    @property
    def saves(self) -> str:
        """As `kernels.template` names it."""
        two_sides = self.facts.SIDES == 2
        return {
            "forward-ad": "slope",
            "fewbit": "table" if self.file or self.bits > WRITTEN_BITS else "codes",
            "invact": "side" if two_sides else "output",
            "invact-precision-bit": "precision-bit",
            "invact-sign-bit": "sign-bit",
        }[self.method]

    @property
    def stored_bits(self) -> int:
        """Bits an element that are packed."""
        if self.saves == "side":
            return 1
        if self.method != "fewbit":
            return 0
        return table(self.key).bits if self.file else int(self.facts.TABLES[self.bits])

    @property
    def keeps_output(self) -> bool:
        """Whether backward needs y."""
        return self.saves in ("output", "side", "precision-bit")

    def empty(self, x: Tensor) -> Tensor:
        """What is saved besides y, not filled: a tensor like x, bit planes, or nothing (no elements)."""
        if self.saves in ("slope", "sign-bit"):
            return torch.empty_like(x)
        shape = (self.stored_bits, plane_bytes(x.numel())) if self.stored_bits else (0,)
        return x.new_empty(shape, dtype=torch.uint8)


@cache
def parse(key: str) -> Kernel:
    """The kernel of a key."""
    function, method, bits, file = key.split("|", 3)
    return Kernel(function, method, int(bits), file)


@cache
def facts(function: str) -> ModuleType:
    """`kernels.generated.<function>_torch`."""
    if function not in FUNCTIONS:
        raise KernelError(f"function must be one of {', '.join(FUNCTIONS)}, got {function!r}")
    return import_module(f"kernels.generated.{function}_torch")


@cache
def unbounded(function: str) -> bool:
    """Whether f' of a function with its default parameters has no bound: no few-bit table serves every x then.

    A bounded one has come to its limits where |x| is 1e30, and one without bound is beyond any of them.
    """
    found = facts(function)
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        far = torch.tensor([1e30, -1e30], dtype=torch.float64, device="cpu")
        return bool((found.derivative(far, list(found.PARAMETERS.values())).abs() > 1e15).any())


@dataclass(frozen=True)
class Table:
    """A few-bit table: q(x) = levels[codes[i]] for borders[i-1] < x <= borders[i]."""

    borders: tuple[float, ...]
    codes: tuple[int, ...]
    levels: tuple[float, ...]

    @property
    def bits(self) -> int:
        """That the codes need."""
        return (len(self.levels) - 1).bit_length()

    @property
    def steps(self) -> int:
        """Of a binary search for the interval."""
        return len(self.borders).bit_length()

    def compared(self, dtype: torch.dtype) -> tuple[float, ...]:
        """The borders as a dtype compares with them: x > border just where x > the number of the dtype below."""
        exact = torch.tensor(self.borders, dtype=torch.float64, device="cpu")
        if dtype == torch.float64:
            return self.borders
        borders = exact.float()
        below = torch.nextafter(borders, torch.full_like(borders, -torch.inf))
        return tuple(torch.where(borders.double() > exact, below, borders).tolist())

    def for_search(self, device: torch.device) -> Tensor:
        """float32: 2**steps borders, the last infinite, 2**steps codes, then the levels; for `template.find`."""
        size = 1 << self.steps
        borders = [*self.compared(torch.float32), *[torch.inf] * (size - len(self.borders))]
        codes = [*self.codes, *[0] * (size - len(self.codes))]
        return torch.tensor([*borders, *codes, *self.levels], dtype=torch.float32, device=device)


@cache
def table(key: str) -> Table:
    """The few-bit table of a kernel, from its file or the packaged one."""
    kernel = parse(key)
    path, _, digest = kernel.file.rpartition("#")
    document: dict[str, Any] = load(path) if path else load(kernel.function, f"fewbit-{kernel.bits}bit")
    if not document["sha256"].startswith(digest):
        raise KernelError(f"coefficients must stay as they were when the layer was made, got another {path}")
    try:
        check_function(document)
        check_numbers(document)
    except CoefficientError as error:
        raise CoefficientError(f"{path or f'{kernel.function} fewbit-{kernel.bits}bit'}: {error}") from None
    solution = document["solution"]
    return Table(tuple(solution["borders"]), tuple(solution["codes"]), tuple(solution["levels"]))


@cache
def search_table(key: str, device: torch.device) -> Tensor:
    """`Table.for_search`, once a device."""
    return table(key).for_search(device)
