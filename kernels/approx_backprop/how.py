"""How tensors are to be kept: the arguments that all of this package take."""

from dataclasses import dataclass
from math import exp, pi, sqrt
from typing import Any

from kernels.errors import KernelError
from kernels.names import APPROX_BITS
from kernels.names import SCHEMES as SCHEMES

ROUNDINGS = ("nearest", "stochastic")
BITS = APPROX_BITS
GROUP = 64  # elements at most that have a least and a step of their own: two bfloat16 are half a bit an element


@dataclass(frozen=True)
class How:
    """scheme: what is kept of a batch norm's result.

        robust  its normalised input in K bits on a fixed range; and a bit, whether what a ReLU gets is above 0
        paper   K bits by the paper's eq. 9, which tell the sign too if |shift / scale| is below 3
        group   its normalised input in K bits between the least and the largest of 64 elements of a channel, and a bit
        fused   its normalised input whole: exact, the fair baseline

    bits: K, 2 to 8. clip: the fixed range ends there, in standard deviations (default: 1 + K/2). rounding: of group,
    "nearest" or "stochastic", which has the right mean (ActNN's). What no batch norm gave is kept as by group, and by
    fused whole. place, trusting: of a layer that gives a copy along, its name, and whether under torch.compile, where
    nobody sees it, it may be taken that its result is not changed in place. Raises KernelError for other values.
    """

    bits: int = 8
    scheme: str = "robust"
    clip: float | None = None
    rounding: str = "nearest"
    place: str = ""
    trusting: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or isinstance(self.bits, bool) or self.bits not in BITS:
            raise KernelError(f"bits must be a whole number from 2 to 8 for approx-backprop, got {self.bits!r}")
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
    def reach(self) -> float:
        """Where the fixed range ends. For numbers from N(0, 1) the best is 2.7 for 4 bits and 3.9 for 8 (Max 1960);
        what networks have reaches further out, and costs more than finer steps bring."""
        return 1 + self.bits / 2 if self.clip is None else float(self.clip)

    @property
    def shrinkage(self) -> float:
        """E[x q(x)] for x from N(0, 1), by which the values that codes of the fixed range stand for are divided.

        Each border b of q, where it rises by a step, adds step * E[x; x > b] = step * phi(b), phi the density of
        N(0, 1): a sum over the borders. So decoded values q / shrinkage have the slope 1 on x, and a gain's gradient is
        no less than it should be in the mean: without it by 12 % at 2 bits, 0.5 % at 4 and 6e-7 at 8, most of all
        since what lies beyond the ends is brought in. (Vargaftik et al., DRIVE, 2021, scale by the data's own sum.)
        """
        count = 1 << self.bits
        step = 2 * self.reach / count
        borders = (step * (k - count // 2) for k in range(1, count))
        return step * sum(exp(-border * border / 2) for border in borders) / sqrt(2 * pi)

    def like(self, other: "How") -> bool:
        """Whether a copy made by one is good enough for the other."""
        return self.scheme == "fused" or (self.bits == other.bits and other.scheme != "fused")

    def __str__(self) -> str:
        return "fused" if self.scheme == "fused" else f"{self.bits} bits, {self.scheme}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
