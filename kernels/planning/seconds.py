"""How long steps of a few samples take with a plan, beside the unchanged model's, and how long its codes take."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kernels.eager.encoded import Encoded, Groups
from kernels.eager.forward import InFewBits
from kernels.eager.mode import Compressing
from kernels.memory.isolated import on_copies, train
from kernels.memory.step import Loss, differentiated
from kernels.methods.every_tensor import SMALLEST, EveryTensor
from kernels.planning.batches import Call
from kernels.planning.blocks import recomputing
from kernels.planning.plan import Plan
from kernels.planning.task import Task, on_samples

ROUNDS = 5  # in which steps with and without the plan take turns
UNCHANGED, PLANNED, CLOCKED = "unchanged", "planned", "with clocks around codes"


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


class _ClockedMode(Compressing):
    """Adds up seconds by site: of encoding, and of decoding in backward."""

    clock: _Clock
    seconds: defaultdict[str, float]

    def _approximated(self, x: Tensor, kind: type[Groups], site: str) -> Encoded:
        if self.method.at(site) is None:
            return super()._approximated(x, kind, site)
        begun = self.clock()
        code = super()._approximated(x, kind, site)
        self.seconds[site] += self.clock() - begun
        return _ClockedCode(code, site, self.clock, self.seconds)


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
    """Replaces a model's forward as a plan does; also tensors that are small because the samples are few have codes."""

    def __init__(self, module: nn.Module, method: EveryTensor, share: float) -> None:
        super().__init__(module, method)
        self._smallest = int(SMALLEST * share)

    def mode(self, *given: Any) -> Compressing:
        mode = self._mode(*given)
        mode.provenance.smallest = self._smallest
        return mode

    def _mode(self, *given: Any) -> Compressing:
        return Compressing(*given)


class _Clocked(_OnSamples):
    """Likewise, with a clock around codes."""

    def __init__(self, module: nn.Module, method: EveryTensor, share: float, clock: _Clock) -> None:
        super().__init__(module, method, share)
        self._clock, self.seconds = clock, defaultdict[str, float](float)

    def _mode(self, *given: Any) -> Compressing:
        mode = _ClockedMode(*given)
        mode.clock, mode.seconds = self._clock, self.seconds
        return mode


def with_times(task: Task, plan: Plan) -> Plan:
    """The plan with `time` of a step, and of the codes at each site, measured on samples of the task's batch."""
    if not plan.needed:
        return replace(plan, time=1.0)
    task.progress("steps of samples, timed")
    with on_copies(task.model), torch.compiler.set_stance("force_eager"):
        if not task.model.training:
            train(task.model)

        def measured(call: Call, targets: Any, share: float) -> Times:
            return _times(task.model, plan, call, task.loss, targets, share)

        times = on_samples(task.call, task.targets, task.samples, False, measured)
    sites = tuple(replace(site, time=times.sites.get(site.name, 0.0)) for site in plan.sites)
    return replace(plan, sites=sites, time=times.step)


def _times(model: nn.Module, plan: Plan, call: Call, loss: Loss | None, targets: Any, share: float) -> Times:
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    clock = _Clock(model)
    clocked = _Clocked(model, plan.method, share, clock)
    forwards: dict[str, tuple[Sequence[str], InFewBits | None]] = {
        UNCHANGED: ((), None),
        PLANNED: (plan.recomputed, _OnSamples(model, plan.method, share)),
        CLOCKED: (plan.recomputed, clocked),
    }
    taken: dict[str, list[float]] = {way: [] for way in forwards}
    by_site: list[dict[str, float]] = []
    for _ in range(1 + ROUNDS):  # the first warms up
        for way, (blocks, forward) in forwards.items():
            clocked.seconds.clear()
            with recomputing(model, blocks), _installed(forward):
                taken[way].append(_seconds(clock, lambda: _step(model, call, loss, targets, weights)))
        by_site.append(dict(clocked.seconds))
    unchanged = median(taken[UNCHANGED][1:])
    return Times(
        median(planned / stock for planned, stock in zip(taken[PLANNED][1:], taken[UNCHANGED][1:], strict=True)),
        {
            site: median(seconds.get(site, 0.0) for seconds in by_site[1:]) / unchanged
            for site in {site for seconds in by_site for site in seconds}
        },
    )


@contextmanager
def _installed(forward: InFewBits | None) -> Iterator[None]:
    with ExitStack() as stack:
        if forward is not None:
            forward.install()
            stack.callback(forward.remove, "the model")
        yield


def _seconds(clock: _Clock, step: Callable[[], object]) -> float:
    begun = clock()
    step()
    return clock() - begun


def _step(model: nn.Module, call: Call, loss: Loss | None, targets: Any, weights: Sequence[Tensor]) -> None:
    """Forward and backward; gradients are dropped."""
    with torch.enable_grad():
        results = differentiated(model(*call.args, **call.kwargs), loss, targets)
    torch.autograd.grad(results, weights, [torch.ones_like(x) for x in results], allow_unused=True)
