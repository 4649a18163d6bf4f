"""What GPUs can do in a clock, in one table; from a kernel's counts, whether memory bounds it.

A streaming multiprocessor (SM) gives out 128 lane-instructions a clock, four schedulers of 32 lanes; each goes to a
unit with lanes of its own. While memory delivers the bytes of one element, a certain number of instructions can be
issued; a kernel is bound by memory if it needs fewer, of each unit too. The model has no latency: other warps are
assumed to hide it.

Sources. Lanes: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions", columns 8.0 and 9.0. Which
instruction goes to which unit: Nsight Compute documentation, "Pipelines". SMs, clocks, nominal bandwidths: NVIDIA's
data sheets and white papers of A100, H100 SXM and H200, clock the highest one. No kernel reaches the
nominal bandwidth (about a tenth is lost), so shares computed with it are too high.
"""

from collections.abc import Mapping
from dataclasses import dataclass

AMPERE = {"issue": 128, "float": 64, "logic": 64, "special": 16}
HOPPER = {"issue": 128, "float": 128, "logic": 64, "special": 16}


@dataclass(frozen=True)
class GPU:
    """A model of GPU.

    Attributes
    ----------
    name, arch
        Of the model, and of its code.
    multiprocessors
        SMs.
    clock
        In GHz, the highest.
    bandwidth
        In TB/s.
    lanes
        Of each unit, an SM and clock.
    source
        Of the bandwidth: nominal or measured.
    """

    name: str
    arch: str
    multiprocessors: int
    clock: float
    bandwidth: float
    lanes: Mapping[str, int]
    source: str

    @property
    def bytes_per_clock(self) -> float:
        """Bytes that memory delivers to each SM in a clock."""
        return 1e3 * self.bandwidth / (self.multiprocessors * self.clock)


GPUS = (
    GPU("A100 40GB", "sm_80", 108, 1.41, 1.555, AMPERE, "nominal"),
    GPU("A100 80GB", "sm_80", 108, 1.41, 2.039, AMPERE, "nominal, SXM"),
    GPU("H100", "sm_90", 132, 1.98, 3.35, HOPPER, "nominal, SXM"),
    GPU("H200", "sm_90", 132, 1.98, 4.3, HOPPER, "measured; nominal 4.8"),
)


@dataclass(frozen=True)
class Prediction:
    """For one element on a whole GPU.

    Attributes
    ----------
    gpu
        Its name.
    memory
        Picoseconds that memory takes.
    shares
        The share of that time that each unit is busy.
    """

    gpu: str
    memory: float
    shares: Mapping[str, float]

    @property
    def issuing(self) -> float:
        """Picoseconds that issuing the instructions takes."""
        return self.memory * self.shares["issue"]

    @property
    def tightest(self) -> str:
        """The unit that is busiest."""
        return max(self.shares, key=lambda unit: self.shares[unit])

    @property
    def memory_bound(self) -> bool:
        """Whether all units can keep up with memory."""
        return self.shares[self.tightest] <= 1


def predict(arch: str, moved: float, counts: Mapping[str, float]) -> tuple[Prediction, ...]:
    """A prediction for each GPU that runs code for `arch`, from counts per element.

    Parameters
    ----------
    arch
        The architecture of the code, as "sm_90".
    moved
        Bytes an element.
    counts
        Instructions an element by the units of `GPU.lanes`; "issue" is all instructions.
    """
    predictions = []
    for gpu in GPUS:
        if gpu.arch == arch:
            clocks = moved / gpu.bytes_per_clock
            shares = {unit: counts[unit] / lanes / clocks for unit, lanes in gpu.lanes.items()}
            predictions.append(Prediction(gpu.name, moved / gpu.bandwidth, shares))
    return tuple(predictions)
