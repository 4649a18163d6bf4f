"""What the allocator gives out, by its own books."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch.autograd.profiler import profile

_BOOKS = "allocated_bytes.all."


@dataclass
class Allocated:
    """A context manager that reads CUDA's books: afterwards `delta` says by how much they have grown.

    Attributes
    ----------
    device
        None: the current one.
    delta
        Bytes by "allocated", "freed", "current" and "peak", the last above what there was at the beginning. CUDA rounds
        sizes up to 512 bytes.

    Raises
    ------
    RuntimeError
        Where there is no CUDA.
    """

    device: torch.device | int | str | None = None

    def __enter__(self) -> Self:
        # Libraries take their own memory at their first use; a product of matrices makes cuBLAS do so.
        torch.ones(8, 8, device=self.device or "cuda").matmul(torch.ones(8, 8, device=self.device or "cuda"))
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        self._before = self._read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.cuda.synchronize(self.device)
        after = self._read()
        self.delta = {name: after[name] - self._before[name] for name in after}
        self.delta["peak"] = after["peak"] - self._before["current"]

    def _read(self) -> dict[str, int]:
        books = torch.cuda.memory_stats(self.device)
        return {name: int(books.get(_BOOKS + name, 0)) for name in ("allocated", "freed", "current", "peak")}


def growth(run: Callable[[], Any], device: torch.device) -> tuple[Any, int]:
    """What `run` gives, and by how many bytes what is allocated on `device` has grown then."""
    if device.type == "cuda":
        with Allocated(device) as books:
            result = run()
        return result, books.delta["current"]
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes to stderr that it starts and stops
    with profile(profile_memory=True) as seen:
        result = run()
    return result, sum(event.self_cpu_memory_usage for event in seen.function_events)
