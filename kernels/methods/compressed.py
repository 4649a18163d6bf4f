"""approx-backprop: layers run forward exactly and save K-bit copies of what backward reads.

Chakrabarti and Moseley, Backprop with Approximate Activations for Memory-efficient Network Training (2019).
"""

from dataclasses import dataclass
from math import exp, pi, sqrt
from typing import Any, ClassVar

from kernels.errors import KernelError
from kernels.methods.method import WithoutKernel, check_bits

SCHEMES = ("robust", "paper", "group", "fused")
ROUNDINGS = ("nearest", "stochastic")
BITS = range(2, 9)


@dataclass(frozen=True)
class Compressed(WithoutKernel):
    """K-bit copies of the inputs of layers, and of f'(x) where an activation has no table.

    Attributes
    ----------
    bits
        K, 2 to 8.
    scheme
        What is saved of a batch norm's result. Other tensors are saved as by "group"; with "fused" whole.

        - "robust": its normalised input in K bits on a fixed range; one more bit tells where a ReLU's input is above 0.
        - "paper": K bits by the paper's eq. 9, which tell the sign, too, if abs(shift / scale) is below 3.
        - "group": its normalised input in K bits between minimum and maximum of 64 elements of a channel, and a bit.
        - "fused": its normalised input whole: exact, the fair baseline.
    clip
        Where the fixed range ends, in standard deviations; None: 1 + K/2.
    rounding
        Of "group": "nearest", or "stochastic", whose mean is right (ActNN's).

    Raises
    ------
    KernelError
        For other values.
    """

    name: ClassVar[str] = "approx-backprop"
    options: ClassVar[tuple[str, ...]] = ("bits", "scheme", "clip", "rounding")
    widths: ClassVar[range] = BITS

    bits: int = 8
    scheme: str = "robust"
    clip: float | None = None
    rounding: str = "nearest"

    def __post_init__(self) -> None:
        check_bits(self.bits, BITS, " for approx-backprop")
        if self.scheme not in SCHEMES:
            raise KernelError(f"scheme must be one of {', '.join(SCHEMES)}, got {self.scheme!r}")
        if self.rounding not in ROUNDINGS:
            raise KernelError(f"rounding must be one of {', '.join(ROUNDINGS)}, got {self.rounding!r}")
        if self.clip is not None:
            if self.scheme != "robust":
                raise KernelError(f"clip must go with scheme='robust', got scheme={self.scheme!r}")
            if not _is_number(self.clip) or not 0 < self.clip <= 1000:
                raise KernelError(f"clip must be a number above 0 and at most 1000, got {self.clip!r}")

    @property
    def exact(self) -> bool:
        """Whether the tensors themselves are saved."""
        return self.scheme == "fused"

    @property
    def reach(self) -> float:
        """The end of the fixed range. For numbers from N(0, 1) the best is 2.7 for 4 bits and 3.9 for 8 (Max 1960);
        numbers in networks lie further out, and cutting them off costs more than finer steps gain."""
        return 1 + self.bits / 2 if self.clip is None else float(self.clip)

    @property
    def shrinkage(self) -> float:
        """E[x q(x)] for x from N(0, 1); the values of codes of the fixed range are divided by it.

        Each border b of q, where it rises by a step, adds step * E[x; x > b] = step * phi(b), phi the density of
        N(0, 1): a sum over the borders. So the regression of q / shrinkage on x has slope 1, and the mean of a gain's
        gradient is right: without the division it is too small by 12 % at 2 bits, 0.5 % at 4 and 6e-7 at 8, mostly
        since values beyond the ends are clamped. (Vargaftik et al., DRIVE, 2021, scale by the data's own sum.)
        """
        count = 1 << self.bits
        step = 2 * self.reach / count
        borders = (step * (k - count // 2) for k in range(1, count))
        return step * sum(exp(-border * border / 2) for border in borders) / sqrt(2 * pi)

    def serves(self, other: "Compressed") -> bool:
        """Whether a copy made by this method is good enough for the other."""
        return self.exact or (self.bits == other.bits and not other.exact)

    def arguments(self) -> dict[str, Any]:
        return {"bits": self.bits, "scheme": self.scheme, "clip": self.clip, "rounding": self.rounding}

    def __str__(self) -> str:
        return f"{self.name}, {self.label}"

    @property
    def label(self) -> str:
        """Bits and scheme."""
        return self.scheme if self.exact else f"{self.bits} bits, {self.scheme}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
