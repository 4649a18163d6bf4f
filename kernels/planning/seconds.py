"""How long steps of a few samples take with a plan, beside the unchanged model's, and how long its codes take."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kernels.eager.coder import Coder
from kernels.eager.encoded import Encoded, Grouped
from kernels.eager.forward import InFewBits
from kernels.eager.mode import Compressing
from kernels.memory.step import Loss, differentiated
from kernels.methods.every_tensor import SMALLEST, EveryTensor
from kernels.planning.batches import Call
from kernels.planning.blocks import recomputing
from kernels.planning.plan import Plan
from kernels.planning.task import Task, in_training, on_samples

ROUNDS = 5  # in which steps with and without the plan take turns


class Times(NamedTuple):
    """Seconds × those of a step of the unchanged model: of a step with the plan, and of codes by site."""

    step: float
    sites: Mapping[str, float]


class _Clock:
    """Seconds until the GPUs that a model is on have done all that they were given."""

    def __init__(self, model: nn.Module) -> None:
        self._gpus = {weight.device for weight in model.parameters() if weight.device.type == "cuda"}

    def __call__(self) -> float:
        for gpu in self._gpus:
            torch.cuda.synchronize(gpu)
        return time.perf_counter()


class _ClockedCoder(Coder):
    """Adds up seconds by site: of encoding, and of decoding in backward."""

    def __init__(self, method: EveryTensor, clock: _Clock, seconds: defaultdict[str, float]) -> None:
        super().__init__(method)
        self._clock, self._seconds = clock, seconds

    def approximated(self, x: Tensor, kind: Grouped, site: str) -> Encoded:
        """As of the class, and clock it."""
        if self.method.at(site) is None:
            return super().approximated(x, kind, site)
        begun = self._clock()
        code = super().approximated(x, kind, site)
        self._seconds[site] += self._clock() - begun
        return _ClockedCode(code, site, self._clock, self._seconds)


class _ClockedCode(Encoded):
    """A code that adds up the seconds of decoding it."""

    def __init__(self, code: Encoded, site: str, clock: _Clock, seconds: defaultdict[str, float]) -> None:
        self._code, self._site, self._clock, self._seconds = code, site, clock, seconds
        self._tensors = code.hand_over()

    def decode(self, tensors: list[Tensor]) -> Tensor:
        begun = self._clock()
        decoded = self._code.decode(tensors)
        self._seconds[self._site] += self._clock() - begun
        return decoded


class _OnSamples(InFewBits):
    """Replaces a model's forward as a plan does; also tensors that are small because the samples are few have codes.

    `seconds` has those of codes by site, if there is a clock.
    """

    def __init__(self, module: nn.Module, method: EveryTensor, share: float, clock: _Clock | None = None) -> None:
        super().__init__(module, method)
        self._smallest, self._clock = int(SMALLEST * share), clock
        self.seconds = defaultdict[str, float](float)

    def mode(self, *given: Any) -> Compressing:
        clocked = None if self._clock is None else _ClockedCoder(self.options.method, self._clock, self.seconds)
        mode = Compressing(*given, coder=clocked)
        mode.provenance.smallest = self._smallest
        return mode


def with_times(task: Task, plan: Plan) -> Plan:
    """The plan with `time` of a step, and of the codes at each site, measured on samples of the task's batch."""
    if not plan.needed:
        return replace(plan, time=1.0)
    task.progress("steps of samples, timed")
    with in_training(task.model):

        def measured(call: Call, targets: Any, share: float) -> Times:
            return _times(task.model, plan, call, task.loss, targets, share)

        times = on_samples(task.call, task.targets, task.samples, False, measured)
    sites = tuple(replace(site, time=times.sites.get(site.name, 0.0)) for site in plan.sites)
    return replace(plan, sites=sites, time=times.step)


def _times(model: nn.Module, plan: Plan, call: Call, loss: Loss | None, targets: Any, share: float) -> Times:
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    clock = _Clock(model)
    planned, clocked = (_OnSamples(model, plan.method, share, own) for own in (None, clock))
    step = partial(_step, model, call, loss, targets, weights)
    taken: list[tuple[float, float]] = []  # unchanged, and with the plan
    by_site: list[dict[str, float]] = []
    for _ in range(1 + ROUNDS):
        unchanged = _seconds(clock, step)
        with _installed(planned, plan.recomputed):
            taken.append((unchanged, _seconds(clock, step)))
        clocked.seconds.clear()
        with _installed(clocked, plan.recomputed):
            step()
        by_site.append(dict(clocked.seconds))
    taken, by_site = taken[1:], by_site[1:]  # the first warms up
    stock = median(unchanged for unchanged, _ in taken)
    names = {site for seconds in by_site for site in seconds}
    return Times(
        median(with_plan / unchanged for unchanged, with_plan in taken),
        {site: median(seconds.get(site, 0.0) for seconds in by_site) / stock for site in names},
    )


@contextmanager
def _installed(forward: InFewBits, blocks: Sequence[str]) -> Iterator[None]:
    """The model saves as a plan does, and computes these blocks again."""
    with recomputing(forward.module, blocks):
        forward.install()
        try:
            yield
        finally:
            forward.remove("the model")


def _seconds(clock: _Clock, step: Callable[[], object]) -> float:
    begun = clock()
    step()
    return clock() - begun


def _step(model: nn.Module, call: Call, loss: Loss | None, targets: Any, weights: Sequence[Tensor]) -> None:
    """Forward and backward; gradients are dropped."""
    with torch.enable_grad():
        results = differentiated(model(*call.args, **call.kwargs), loss, targets)
    torch.autograd.grad(results, weights, [torch.ones_like(x) for x in results], allow_unused=True)
