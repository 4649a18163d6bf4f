"""compress: a model runs forward exactly, and all tensors that autograd saves are stored in few bits.

Any tensor is coded, as in GACT (Liu et al., 2022). Knowledge of the calls that made it saves more.
"""

from dataclasses import dataclass
from typing import ClassVar

from actfit.kernels.errors import KernelError, shown
from actfit.kernels.methods.method import check_bits

ROUNDINGS = ("nearest", "stochastic")
BITS = range(2, 9)

SMALLEST = 4096  # elements of a tensor; coding a smaller one is not worth the kernels that it takes
STATISTIC = 16  # a reduction of this many elements to one gives a statistic, which is small and has to be exact

MIN_GROUP = 32  # elements that share a minimum and a step, which take 4 bytes


@dataclass(frozen=True)
class EveryTensor:
    """Codes of every saved tensor that backward does not need exactly; raises KernelError for other values."""

    name: ClassVar[str] = "compress"
    widths: ClassVar[range] = BITS
    on_fixed_range: ClassVar[bool] = False  # whether codes of a batch norm's input reach over a fixed range

    bits: int = 4  # of an element; 4 bytes more go to each group, of 64 as a rule, for its minimum and its step
    rounding: str = "nearest"  # or "stochastic", whose decoded values have the right mean

    def __post_init__(self) -> None:
        check_bits(self.bits, BITS)
        if self.rounding not in ROUNDINGS:
            raise KernelError(f"rounding must be one of {', '.join(ROUNDINGS)}, got {shown(self.rounding)}")

    def at(self, site: str) -> "EveryTensor | None":
        """The method for the tensor at a site; None: it is saved as it is."""
        return self

    def under(self, module: str) -> "EveryTensor":
        """The method for the sites in a module, by their names within it."""
        return self

    def __str__(self) -> str:
        return f"{self.name}, {self.bits} bits" + (f", {self.rounding}" if self.rounding != "nearest" else "")
