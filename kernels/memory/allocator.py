"""Bytes that the allocator hands out, by its own statistics."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.autograd.profiler import profile

_PREFIX = "allocated_bytes.all."


@dataclass
class Allocated:
    """A context manager that reads CUDA's memory statistics: afterwards `delta` has their growth.

    Attributes
    ----------
    device
        None: the current one.
    delta
        Bytes by "allocated", "freed", "current" and "peak", the last relative to the beginning. CUDA rounds
        sizes up to 512 bytes.

    Raises
    ------
    RuntimeError
        Without CUDA.
    """

    device: torch.device | int | str | None = None

    def __enter__(self) -> Self:
        # Libraries allocate their own memory at their first use: a product of matrices makes cuBLAS do so now.
        torch.ones(8, 8, device=self.device or "cuda").matmul(torch.ones(8, 8, device=self.device or "cuda"))
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        self._before = self._read()
        return self

    def __exit__(self, *_: Any) -> None:
        torch.cuda.synchronize(self.device)
        after = self._read()
        self.delta = {name: after[name] - self._before[name] for name in after}
        self.delta["peak"] = after["peak"] - self._before["current"]

    def _read(self) -> dict[str, int]:
        statistics = torch.cuda.memory_stats(self.device)
        return {name: int(statistics.get(_PREFIX + name, 0)) for name in ("allocated", "freed", "current", "peak")}


def growth(run: Callable[[], Any], device: torch.device) -> tuple[Any, int]:
    """The result of `run`, and by how many bytes the memory allocated on `device` grew."""
    if device.type == "cuda":
        with Allocated(device) as allocated:
            result = run()
        return result, allocated.delta["current"]
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it logs to stderr
    with profile(profile_memory=True) as seen:
        result = run()
    return result, sum(event.self_cpu_memory_usage for event in seen.function_events)
