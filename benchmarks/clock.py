"""Clocks for a GPU and a CPU, rounds in which rivals take turns, and the rows of their times."""

import ctypes
import platform
import random
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks import rows
from benchmarks.kernels.cases import Call
from benchmarks.rows import Row, summary

M_MMAP_MAX, M_TRIM_THRESHOLD = -4, -1  # of glibc's malloc.h


class GpuClock:
    """Seconds between two events around a call, with its data flushed from the L2 cache.

    Reading a larger buffer flushes the cache, so that nothing must be written back. While the GPU reads, the host
    launches the call: the host's time counts only if it exceeds MOST readings.
    """

    WARM_UP = 2  # rounds that are not counted
    LEAST, MOST = 4, 32

    def __init__(self) -> None:
        size = max(4 * torch.cuda.get_device_properties().L2_cache_size, 1 << 28)
        self.buffer = torch.zeros(size // 4, device="cuda")
        self.readings = self.LEAST

    def __call__(self, call: Call) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        while True:
            for _ in range(self.readings):
                self.buffer.sum()
            start.record()
            call()
            end.record()
            ahead = not start.query()  # the GPU had not reached the call when its launch was complete
            end.synchronize()
            if ahead or self.readings >= self.MOST:
                return start.elapsed_time(end) / 1000
            self.readings *= 2


class CpuClock:
    """Seconds of a call on the host; caches are as the previous rival left them, and freed memory stays in the process.

    Else glibc returns large tensors to the system, and mapping their pages anew takes longer than computing with them:
    the most for what keeps most. A GPU's allocator keeps memory, too.
    """

    WARM_UP = 0

    def __init__(self) -> None:
        if platform.libc_ver()[0] == "glibc":
            libc = ctypes.CDLL(None)
            libc.mallopt(M_MMAP_MAX, 0)
            libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)

    def __call__(self, call: Call) -> float:
        begun = time.perf_counter()
        call()
        return time.perf_counter() - begun


def clock_of(device: torch.device) -> GpuClock | CpuClock:
    """The clock for a device."""
    return GpuClock() if device.type == "cuda" else CpuClock()


def rounds(clock: GpuClock | CpuClock, calls: Mapping[str, Call], runs: int) -> dict[str, list[float]]:
    """Seconds of `runs` rounds of every rival once in random order, so that the previous run affects all alike."""
    names, order = list(calls), random.Random(0)
    for call in calls.values():  # compiles
        call()
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-clock.WARM_UP, runs):
        for name in order.sample(names, len(names)):
            seconds = clock(calls[name])
            if turn >= 0:
                times[name].append(seconds)
    return times


def ratio_rows(base: Mapping[str, Any], seconds: Mapping[str, Sequence[float]], rival: str) -> list[Row]:
    """Seconds of each, and the ratio of each to one rival, round by round."""
    rows = [Row(implementation=name, unit="s", **base, **summary([*taken])) for name, taken in seconds.items()]
    for name, taken in seconds.items():
        if name != rival:
            ratios = [own / other for own, other in zip(taken, seconds[rival], strict=True)]
            rows.append(Row(implementation=f"{name} / {rival}", unit="ratio of times", **base, **summary(ratios)))
    return rows


def origin(device: torch.device) -> dict[str, Any]:
    """The fields of a row that say where it was measured: device, versions, revision."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    if device.type == "cuda":
        import triton  # not needed on a CPU

        versions["triton"] = triton.__version__
        versions["cuda"] = str(torch.version.cuda)
        name = re.sub(r"[^A-Za-z0-9]+", "-", torch.cuda.get_device_name(device)).strip("-").lower()
    else:
        versions["threads"] = str(torch.get_num_threads())
        name = rows.device()
    return {"device": name, "versions": versions, "revision": rows.revision()}
