"""The largest batches of the paper's ResNets that fit a GPU, of `benchmarks.approx_backprop`.

Without a GPU, a step runs on fake tensors and its peak is counted: the most bytes that live at once of parameters,
momentum, activations, copies, gradients and intermediate results. That leaves out workspaces (of cuDNN), CUDA's context
and the allocator's waste, so the counted batches are too large. On a GPU, steps run within the given memory until it
is exhausted, and are timed.
"""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from benchmarks.approx_backprop.nets import CHECKPOINT, CLASSES, FOUR, FUSED, PAPER, STOCK, apply_way, cifar
from benchmarks.rows import Row, summary
from kernels.memory.step import Living

WAYS = (STOCK, CHECKPOINT, FUSED, PAPER, FOUR)
SIDE, MOST = 32, 1 << 20  # of an image; samples
STEPS = 5  # timed


@dataclass(frozen=True)
class Net:
    """A net of the paper, and its row of table 2: batches and seconds a sample, exact (our fused) and by 4 bits."""

    depth: int
    width: int
    batches: tuple[int, int]
    seconds: tuple[float, float]


NETS = {
    "164": Net(164, 16, (688, 2522), (4.1e-3, 4.3e-3)),
    "254": Net(254, 16, (474, 2154), (6.5e-3, 6.7e-3)),
    "488": Net(488, 16, (264, 1468), (13.3e-3, 12.7e-3)),
    "1001": Net(1001, 16, (134, 876), (31.3e-3, 26.0e-3)),
    "1001, 4×": Net(1001, 64, (26, 182), (130.8e-3, 101.6e-3)),
}


def made(net: Net, way: str) -> nn.Module:
    """The model in training mode, converted in one of WAYS."""
    model = cifar(net.depth, net.width)
    apply_way(model, way)
    return model.train()


def counted(net: Net, way: str) -> Callable[[int], int]:
    """A function from batch size to the peak bytes of a step on fake tensors, plus the momentum.

    The optimiser runs after the activations are freed, so it does not raise the peak.
    """
    fakes = FakeTensorMode()
    with fakes:
        model = made(net, way)

    def peak(batch: int) -> int:
        model.zero_grad(set_to_none=True)
        living = Living()
        with fakes:
            images, labels = torch.randn(batch, 3, SIDE, SIDE), torch.randint(0, CLASSES, (batch,))
            for tensor in (*model.parameters(), *model.buffers(), images, labels):
                living.add(tensor.untyped_storage())
            with living:
                F.cross_entropy(model(images), labels).backward()
        return living.peak + sum(tensor.nbytes for tensor in model.parameters())

    return peak


def largest_of_line(peak: Callable[[int], int], memory: int) -> tuple[int, float, float]:
    """The largest batch whose peak is within `memory`, the bytes of each sample, and the bytes besides.

    A peak is the largest of a few sums, each linear in the batch, so a line through two batches near the largest one
    finds it.
    """
    first, second = 16, 32
    low, high = peak(first), peak(second)
    for _ in range(8):
        each = (high - low) / (second - first)
        besides = high - each * second
        batch = int((memory - besides) // each)
        if batch < 1:
            return 0, each, besides
        if batch == second:
            break
        first, low, second = second, high, batch
        high = peak(batch)
    return batch, each, besides


def largest_that_runs(runs: Callable[[int], bool], guess: int, grain: int = 1) -> int:
    """The largest batch that runs, to within `grain`; 0 if none does. guess: the first to try.

    Doubling steps find a batch that runs and one that does not; bisection finds the border between them.
    """
    good, bad, trial = 0, MOST, max(1, guess)
    step = max(1, trial // 16)
    while bad - good > (grain if good else 1):
        if runs(trial):
            good, trial = trial, trial + step
        else:
            bad, trial = trial, trial - step
        step *= 2
        if not good < trial < bad or (good > 0 and bad < MOST):
            trial = (good + bad) // 2
    return good


class Running:
    """Steps of a model on a GPU."""

    def __init__(self, net: Net, way: str, device: torch.device) -> None:
        self.model, self.device = made(net, way).to(device), device
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9, weight_decay=2e-4)

    def __call__(self, batch: int) -> bool:
        """Whether two steps fit; momentum exists from the second on."""
        try:
            for _ in range(2):
                self.step(batch)
            torch.cuda.synchronize(self.device)
        except torch.OutOfMemoryError:
            return False
        finally:
            self.optimiser.zero_grad(set_to_none=True)
            gc.collect()
            torch.cuda.empty_cache()
        return True

    def step(self, batch: int) -> None:
        """Run forward and backward, and update the weights."""
        images = torch.randn(batch, 3, SIDE, SIDE, device=self.device)
        labels = torch.randint(0, CLASSES, (batch,), device=self.device)
        self.optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(self.model(images), labels).backward()
        self.optimiser.step()

    def seconds(self, batch: int) -> float:
        """Seconds of a step for each sample."""
        torch.cuda.synchronize(self.device)
        begun = time.perf_counter()
        self.step(batch)
        torch.cuda.synchronize(self.device)
        return (time.perf_counter() - begun) / batch


def batches(
    nets: Sequence[str], memory: int, device: torch.device, where: Mapping[str, Any], ways: Sequence[str] = WAYS
) -> Iterator[list[Row]]:
    """The rows of each net."""
    for name in nets:
        net, rows = NETS[name], []
        for way in ways:
            size = {"depth": net.depth, "width": net.width, "memory": memory}
            base = {"implementation": way, "size": size, "dtype": "float32", **where}
            batch, each, besides = largest_of_line(counted(net, way), memory)
            numbers = {"largest batch": (batch, "samples"), "each sample": (each, "B"), "besides": (besides, "B")}
            rows += [
                Row(what, mode="counted", unit=unit, **base, **summary([float(value)]))
                for what, (value, unit) in numbers.items()
            ]
            if device.type == "cuda":
                rows += measured(Running(net, way, device), batch, base)
        yield rows


def measured(running: Running, guess: int, base: Mapping[str, Any]) -> list[Row]:
    """The largest batch that runs, and the seconds of a sample in it."""
    whole = torch.cuda.get_device_properties(running.device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, base["size"]["memory"] / whole), running.device)
    try:
        batch = largest_that_runs(running, guess)
        rows = [Row("largest batch", mode="run", unit="samples", **base, **summary([float(batch)]))]
        if batch:
            seconds = [running.seconds(batch) for _ in range(STEPS + 1)][1:]
            rows.append(Row("step, of each sample", mode="run", unit="s", **base, **summary(seconds)))
        return rows
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, running.device)


def described(rows: Sequence[Row]) -> str:
    """The result in a line, shown while the rest runs."""
    words = ", ".join(f"{row.implementation} {row.median:.0f} {row.mode}" for row in rows if row.unit == "samples")
    return f"ResNet-{rows[0].size['depth']}, {rows[0].size['width']} wide, largest batch: {words}"
