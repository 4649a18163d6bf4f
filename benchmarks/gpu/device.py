"""Time and bytes of a GPU, by CUDA's events and allocator; without CUDA the processor's clock runs."""

import gc
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import torch


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
