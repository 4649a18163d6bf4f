"""Bytes that a device's allocator gives out during a training step."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.gpu.device import CudaBooks

BACKWARD = "backward begins"


class Bytes(NamedTuple):
    """Bytes above those before a step. kept: after forward, with the loss. peak: the most during both passes."""

    kept: int
    peak: int


def measured(loss: Callable[[], Tensor], device: torch.device) -> Bytes:
    """The bytes of forward and backward; gradients must be allocated before."""
    if device.type != "cuda":
        return _by_profiler(loss)
    with CudaBooks(device) as books:
        result = loss()
        kept = books.grown()
        result.backward()
        return Bytes(kept, books.most())


def _by_profiler(loss: Callable[[], Tensor]) -> Bytes:
    """Bytes by the events of the CPU's allocator, which also gives out Inductor's buffers."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as events:  # else 2.10 warns
        result = loss()
        with record_function(BACKWARD):
            pass
        result.backward()
    assert events.profiler is not None
    results = events.profiler.kineto_results
    assert results is not None
    ordered = sorted(results.events(), key=lambda event: event.start_ns())
    now = kept = peak = 0
    for event in ordered:
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
        elif event.name() == BACKWARD:
            kept = now
    return Bytes(kept, peak)
