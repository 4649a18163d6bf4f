"""The one place that knows whether there is a GPU: time and bytes, by CUDA's events and allocator, or counted.

Without CUDA the processor's clock runs, and storages are counted as they are born and die, so that the same code runs.
"""

import gc
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch

from kernels.memory.step import Living


class CudaBooks:
    """A context manager: `grown()` is by how many bytes the allocator was asked for more than at the beginning, now,
    and `most()` at most; what it rounds up is left out."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __enter__(self) -> Self:
        gc.collect()
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        self.before = self._asked("current")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def _asked(self, when: str) -> int:
        torch.cuda.synchronize(self.device)
        return int(torch.cuda.memory_stats(self.device)[f"requested_bytes.all.{when}"])

    def grown(self) -> int:
        return self._asked("current") - self.before

    def most(self) -> int:
        return self._asked("peak") - self.before


class CountedBooks(Living):
    """The same for a CPU, by counting storages as they are made and freed; more than `limit` bytes are refused."""

    def __init__(self, limit: float = float("inf")) -> None:
        super().__init__()
        self.limit = limit

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if self.now > self.limit:
            raise torch.OutOfMemoryError(f"out of memory: {self.now} bytes of {self.limit}")
        return result

    def grown(self) -> int:
        return self.now

    def most(self) -> int:
        return self.peak


Books = CudaBooks | CountedBooks


def books(device: torch.device, limit: float = float("inf")) -> Books:
    """What counts the bytes of a device. limit: the most bytes that are counted without CUDA, which has its own."""
    return CudaBooks(device) if device.type == "cuda" else CountedBooks(limit)


def seconds(device: torch.device, call: Callable[[], object], count: int) -> list[float]:
    """The seconds of each of `count` calls, one after the other, on the device: the host may be ahead."""
    if device.type != "cuda":
        times = []
        for _ in range(count):
            begun = time.perf_counter()
            call()
            times.append(time.perf_counter() - begun)
        return times
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    torch.cuda.synchronize(device)
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize(device)
    return [events[at].elapsed_time(events[at + 1]) / 1000 for at in range(count)]


def settle(device: torch.device) -> None:
    """Free unused memory for the next measurement."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def memory(device: torch.device, counted: int) -> int:
    """Free bytes; counted: the number to give where there is no GPU."""
    if device.type != "cuda":
        return counted
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device))
