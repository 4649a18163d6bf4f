"""Time on a GPU, by CUDA's events; without CUDA the processor's clock runs."""

import gc
import time
from collections.abc import Callable

import torch


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
