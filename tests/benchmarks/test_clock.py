"""The clock of a GPU, tested with a simulated GPU that counts its own time."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks import clock


class Gpu:
    """A simulated GPU: does its work in order, each piece in its time; the host waits only to synchronise."""

    READING = 0.1  # milliseconds

    def __init__(self):
        self.host = self.free = 0.0  # when the host and the GPU finish all their work
        self.readings = 0

    def work(self, milliseconds):
        self.free = max(self.free, self.host) + milliseconds

    def read(self):
        self.readings += 1
        self.work(self.READING)

    def event(self, **_):
        at = SimpleNamespace(time=None)

        def record():
            at.time = max(self.free, self.host)

        def synchronize():
            self.host = max(self.host, at.time)

        return SimpleNamespace(
            at=at,
            record=record,
            synchronize=synchronize,
            query=lambda: at.time <= self.host,
            elapsed_time=lambda end: end.at.time - at.time,
        )


@pytest.fixture
def gpu(monkeypatch):
    machine = Gpu()
    buffer = SimpleNamespace(sum=machine.read)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: SimpleNamespace(L2_cache_size=1))
    monkeypatch.setattr(torch.cuda, "Event", machine.event)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: buffer)
    return machine


def call(gpu, host, device):
    """A call that takes the host `host` milliseconds to launch, and the GPU `device` to run."""

    def run():
        gpu.host += host
        gpu.work(device)

    return run


def test_a_call_that_is_given_out_in_time_takes_what_the_gpu_takes(gpu):
    seconds = clock.GpuClock()(call(gpu, host=0.05, device=0.7))
    assert seconds == pytest.approx(0.0007)
    assert gpu.readings == clock.GpuClock.LEAST


def test_the_gpu_is_kept_busy_for_as_long_as_the_host_takes(gpu):
    slow = clock.GpuClock()
    seconds = slow(call(gpu, host=1.0, device=0.7))  # 4 and 8 readings end before that, 16 do not
    assert seconds == pytest.approx(0.0007)
    assert slow.readings == 16
    assert gpu.readings == 4 + 8 + 16
    assert slow(call(gpu, host=1.0, device=0.2)) == pytest.approx(0.0002)  # the number of readings is kept
    assert gpu.readings == 4 + 8 + 16 + 16
