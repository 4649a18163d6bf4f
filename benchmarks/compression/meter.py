"""Bytes that a device's allocator gives out during a training step."""

import gc
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

BACKWARD = "backward begins"


class Bytes(NamedTuple):
    """Bytes above those before a step. kept: after forward, with the loss. peak: the most during both passes."""

    kept: int
    peak: int


def measured(loss: Callable[[], Tensor], device: torch.device, grad: Tensor | None = None) -> Bytes:
    """The bytes of forward and backward, by what was asked for; gradients must be allocated before.

    grad: that of `loss`, if it is not one number.
    """
    if device.type != "cuda":
        return _by_profiler(loss, grad)
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = _asked(device, "current")
    result = loss()
    kept = _asked(device, "current") - before
    result.backward(grad)
    return Bytes(kept, _asked(device, "peak") - before)


def _asked(device: torch.device, when: str) -> int:
    """Bytes that CUDA's allocator was asked for; what it rounds up is left out."""
    torch.cuda.synchronize(device)
    return int(torch.cuda.memory_stats(device)[f"requested_bytes.all.{when}"])


def _by_profiler(loss: Callable[[], Tensor], grad: Tensor | None) -> Bytes:
    """Bytes by the events of the CPU's allocator, which also gives out Inductor's buffers."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as events:  # else 2.10 warns
        result = loss()
        with record_function(BACKWARD):
            pass
        result.backward(grad)
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
