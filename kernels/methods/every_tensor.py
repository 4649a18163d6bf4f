"""compress: a model runs forward exactly, and all that autograd saves of it is kept in few bits, by structure.

What is coded is any tensor, as in GACT (Liu et al., 2022). What is known of the calls that made it saves more.
"""

from dataclasses import dataclass
from typing import ClassVar

from kernels.errors import KernelError, shown
from kernels.methods.compressed import BITS, ROUNDINGS
from kernels.methods.method import WithoutKernel

SMALLEST = 4096  # elements: below, codes save less than the kernels that make them take
STATISTIC = 16  # a reduction of so many elements to one leaves a statistic, which is small and has to be exact

# Elements that share a minimum and a step, which take 4 bytes. Where a bit more is counted as half the error, groups of
# 128 of a channel or token are better than of 64 and, in the mean of nets of images and of text, no worse than of 256.
GROUP, SMALLEST_GROUP = 128, 32
ACROSS = 64  # where they are of several channels


@dataclass(frozen=True)
class EveryTensor(WithoutKernel):
    """Codes of every saved tensor that backward need not have exactly.

    Attributes
    ----------
    bits
        Of an element, 2 to 8; 4 bytes more go to each group of 128 or fewer, for its minimum and its step.
    rounding
        "nearest", or "stochastic", whose decoded values have the right mean.

    Raises
    ------
    KernelError
        For other values.
    """

    name: ClassVar[str] = "compress"
    options: ClassVar[tuple[str, ...]] = ("bits", "rounding")
    widths: ClassVar[range] = BITS
    by_site: ClassVar[bool] = False  # whether it has to know which tensor of the model it codes

    bits: int = 4
    rounding: str = "nearest"

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or isinstance(self.bits, bool) or self.bits not in BITS:
            raise KernelError(f"bits must be a whole number from 2 to 8, got {shown(self.bits)}")
        if self.rounding not in ROUNDINGS:
            raise KernelError(f"rounding must be one of {', '.join(ROUNDINGS)}, got {shown(self.rounding)}")

    def at(self, site: str) -> "EveryTensor | None":
        """What codes the tensor at a site; None: it stays as it is."""
        return self

    def __str__(self) -> str:
        return f"{self.name}, {self.bits} bits" + (f", {self.rounding}" if self.rounding != "nearest" else "")
