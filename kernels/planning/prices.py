"""What ways to save less take of a step's time, as measured on the model's device."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from actfit.kernels import private
from actfit.kernels.memory.step import differentiated
from actfit.kernels.planning.batches import Call, copies, on_samples, part
from actfit.kernels.planning.blocks import Blocks, BlockWays
from actfit.kernels.planning.task import SAMPLES, Task, in_training

ROUNDS = 3  # in each of which every way takes a step; the fastest step counts, as others only disturb it
ENOUGH = 0.25  # seconds of a step of so many samples that what a call costs hardly shows; our choice
ROOM = 0.8  # of the memory that is free on a GPU
Ways = dict[str, Callable[[], AbstractContextManager[object]]]  # what the model is changed by, for a step
STOCK, EXACT, CODED, AGAIN = "stock", "exact", "coded", "again"


class Parts(NamedTuple):
    """The share of blocks that are captured, run again in backward, or run as stock; together 1."""

    captured: float
    again: float
    stock: float


@dataclass(frozen=True)
class Prices:
    """Seconds beyond those of a step of the unchanged model, as shares of these."""

    captured: float  # of all blocks by graphs of forward and backward, exactly
    coded: float  # of codes of all tensors that can have some
    again: float  # of a second forward pass of all blocks
    shares: Mapping[str, float] = field(default_factory=dict)  # of each block in the time of all forward passes
    measured: bool = True

    def time(self, parts: Parts, coded: float) -> float:
        """Seconds of a step, × those of the unchanged model, with codes of a share of what can have some."""
        return 1.0 + self.captured * parts.captured + self.again * parts.again + self.coded * coded


def usual(blocks: Blocks) -> Prices:
    """Those of a Llama of 16 layers in bfloat16 on an H100, see docs/results/models.md, with blocks that are alike."""
    return Prices(0.09, 0.08, 0.30, {name: 1 / len(blocks) for name in blocks}, measured=False)


def measure(task: Task, blocks: Blocks) -> Prices:
    """The prices of a model's ways, on samples of its batch; the usual ones if it has no numbers, or no memory."""
    weights = list(task.model.parameters())
    real = not any(private.is_fake(x) or x.is_meta for x in weights) and any(x.requires_grad for x in weights)
    if not real or task.stand_in is not None:
        return usual(blocks)
    task.progress("timing steps")
    _, few = part((task.call, task.targets), SAMPLES)
    stock: Ways = {STOCK: nullcontext}
    ways = stock | {
        EXACT: task.changed(BlockWays(exact=True)),
        CODED: task.changed(BlockWays()),
        **({AGAIN: task.changed(BlockWays(blocks, exact=True))} if blocks else {}),
    }
    try:
        with in_training(task.model, task.written):
            first = on_samples(task.call, task.targets, SAMPLES, False, partial(_seconds, task, (), stock, 1))
            step = min(first[STOCK])
            share = min(_fitting(task), few * ENOUGH / step)
            samples = None if share >= 1 else max(int(SAMPLES * share / few), SAMPLES)
            rounds = ROUNDS if step <= ENOUGH else 1
            seconds = on_samples(task.call, task.targets, samples, False, partial(_seconds, task, blocks, ways, rounds))
    except (MemoryError, torch.OutOfMemoryError):
        return usual(blocks)
    now, exact, coded, again = (min(seconds.get(way, seconds[STOCK])) for way in (STOCK, EXACT, CODED, AGAIN))
    forward = {name: min(seconds[name], default=0.0) for name in blocks}  # one that was not called takes none
    total = sum(forward.values())
    if blocks and not total:
        return usual(blocks)
    return Prices(
        exact / now - 1 if task.compiles else max(exact / now - 1, 0.0),
        max((coded - exact) / now, 0.0),
        max(again / now - 1, 0.0),
        {name: one / total for name, one in forward.items()},
    )


def _fitting(task: Task) -> float:
    """The share of the batch of which a step of the unchanged model fits into a GPU's memory."""
    device = next(task.model.parameters()).device
    if device.type != "cuda":
        return 1.0
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(ROOM * free / max(task.stock.peak - task.held.before, 1))


def _seconds(
    task: Task, blocks: Blocks, ways: Ways, rounds: int, call: Call, targets: Any, share: float
) -> Mapping[str, Sequence[float]]:
    """Seconds of steps of each way, in turns, and of each block's forward pass; the first of each is not counted."""
    seconds: dict[str, list[float]] = {way: [] for way in (*ways, *blocks)}
    for number in range(rounds + 1):
        for way, changed in ways.items():
            with changed(), torch.compiler.set_stance("default"):
                begun = _now(task)
                _step(task, call, targets)
                taken = _now(task) - begun
            if number:
                seconds[way].append(taken)
        if blocks:
            with ExitStack() as undone:
                _clocked(task, blocks, seconds, undone)
                _forward(task, call, targets)
    return seconds


def _forward(task: Task, call: Call, targets: Any) -> list[Tensor]:
    """What backward starts from, of copies of the inputs: a model may change these in place."""
    call, targets = copies((call, targets))
    with torch.enable_grad():
        return differentiated(task.model(*call.args, **call.kwargs), task.loss, targets)


def _step(task: Task, call: Call, targets: Any) -> None:
    """Forward and backward."""
    weights = [weight for weight in task.model.parameters() if weight.requires_grad]
    losses = _forward(task, call, targets)
    torch.autograd.grad(losses, weights, [torch.ones_like(x) for x in losses], allow_unused=True)


def _now(task: Task) -> float:
    """Seconds, when the model's device has done all that it was given."""
    device = next(task.model.parameters()).device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _clocked(task: Task, blocks: Blocks, seconds: Mapping[str, list[float]], undone: ExitStack) -> None:
    """Let hooks note the seconds of each block's forward pass."""
    begun: dict[str, float] = {}

    def begin(name: str, *given: object) -> None:
        begun[name] = _now(task)

    def end(name: str, *given: object) -> None:
        seconds[name].append(_now(task) - begun[name])

    for name in blocks:
        module = task.model.get_submodule(name)
        undone.callback(module.register_forward_pre_hook(partial(begin, name)).remove)
        undone.callback(module.register_forward_hook(partial(end, name)).remove)
