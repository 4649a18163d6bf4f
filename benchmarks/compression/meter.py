"""Bytes of a step of training, as the allocator of a device gives them out."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.gpu.device import CudaBooks

BACKWARD = "backward begins"


class Bytes(NamedTuple):
    """Over what is there before a step. kept: after forward, with the loss. peak: the most during both passes."""

    kept: int
    peak: int


def measured(loss: Callable[[], Tensor], device: torch.device) -> Bytes:
    """Of forward and backward; gradients are there before and are added to."""
    if device.type != "cuda":
        return _by_profiler(loss)
    with CudaBooks(device) as books:
        result = loss()
        kept = books.grown()
        result.backward()
        return Bytes(kept, books.most())


def _by_profiler(loss: Callable[[], Tensor]) -> Bytes:
    """By the events of the CPU's allocator, of which Inductor's buffers come, too."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as events:
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
