"""One training of `benchmarks.training`: from a seed to its results."""

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from actfit.kernels.memory import Recorder
from benchmarks.compression.meter import measured
from benchmarks.options import torch_threads
from benchmarks.training import variants
from benchmarks.training.data import TEXTS, Data, data
from benchmarks.training.models import loss, right

POINTS = 20  # of a curve
SHARE = 4  # a point of the curve uses one in so many held-out inputs; the end uses all
JUDGED = 128  # inputs at a time
WARM_UP = 0.1  # of the steps: the rate rises to its highest, then falls to 0 by half a cosine


@dataclass(frozen=True)
class Settings:
    """All settings of a training but the variant and the seed.

    width: of a transformer's stream, or of a ResNet's first blocks.
    layers: of a transformer, or blocks of a ResNet at each resolution. context: of GPT, in characters. rate: the
    highest. amp: bfloat16 by autocast. digest: of the data.
    """

    task: str
    size: str
    activation: str
    width: int
    layers: int
    context: int
    batch: int
    steps: int
    rate: float
    device: str
    amp: bool
    threads: int
    digest: str
    torch: str


@lru_cache(maxsize=4)
def load(task: str, context: int, device: str) -> Data:
    """The data of a task; a process loads it once."""
    return data(task, context, torch.device(device))


def of(settings: Settings) -> Data:
    """The data of these settings."""
    return load(settings.task, settings.context, settings.device)


def start(settings: Settings, variant: str, seed: int) -> nn.Module:
    """The model with the seed's first weights. Afterwards torch's generator is seeded again."""
    torch.manual_seed(seed)
    size = (settings.width, settings.layers, variant)
    model = variants.model(of(settings), settings.task, settings.activation, *size)
    torch.manual_seed(seed)  # only ActNN draws from it from here on
    return model.to(settings.device)


def train(settings: Settings, variant: str, seed: int) -> tuple[nn.Module, dict[str, Any]]:
    """The trained model, and its measurements:

    loss (None if not finite) and accuracy on all held-out data, in nats an element and as a share; curve, of POINTS
    rows: steps done, mean loss of the batches since the last row, loss on a share of the held-out data; kept, bytes
    saved for backward; seconds of training without evaluation, of the processor on a CPU. For the tasks of
    variants.CODED, whose models may be compiled, also the peak of a step; seconds do not count compiling.
    """
    with conditions(settings):
        model, data_of = start(settings, variant, seed), of(settings)
        first = first_batch(settings, seed)
        with autocast(settings):
            run = variants.runner(model, variant, first)
        sizes = _tried(settings, model, run, first) if settings.task in variants.CODED else {}
        optimiser = optimiser_of(settings, model)
        batches = torch.Generator().manual_seed(seed)
        curve, losses, seconds = [], [], 0.0
        for step in range(settings.steps):
            begun = _clock(settings)
            x, target = data_of.batch(settings.batch, batches)
            for group in optimiser.param_groups:
                group["lr"] = settings.rate * share_of_rate(step, settings.steps)
            optimiser.zero_grad(set_to_none=True)
            if not sizes:
                value, sizes["kept"] = counted(lambda x=x, target=target: forward(settings, run, x, target), model)
            else:
                value = forward(settings, run, x, target)
            value.backward()
            optimiser.step()
            seconds += _clock(settings) - begun
            losses.append(value.detach())
            if (step + 1) * POINTS // settings.steps > step * POINTS // settings.steps:
                curve.append([step + 1, _short(torch.stack(losses).mean()), _short(judge(settings, model, SHARE)[0])])
                losses = []
        results: dict[str, Any] = {**_judged(settings, model), **sizes}
    return model, {**results, "seconds": seconds, "curve": curve}


def first_batch(settings: Settings, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the first batch of a seed's training."""
    return of(settings).batch(settings.batch, torch.Generator().manual_seed(seed))


def _tried(settings: Settings, model: nn.Module, run: variants.Run, batch: tuple[Tensor, Tensor]) -> dict[str, int]:
    """Kept and peak of the first batch by the allocator, with gradients allocated before; the model stays as it was."""
    before = copy.deepcopy(model.state_dict())  # with the averages of batch norms
    step = partial(forward, settings, run, *batch)
    step().backward()  # compiles
    bytes = measured(step, torch.device(settings.device))
    model.load_state_dict(before)
    model.zero_grad()
    return bytes._asdict()


def autocast(settings: Settings) -> torch.autocast:
    """A context that computes in bfloat16 if the settings say so."""
    return torch.autocast(settings.device, torch.bfloat16, enabled=settings.amp)


def forward(settings: Settings, run: variants.Run, x: Tensor, target: Tensor) -> Tensor:
    """The loss of a batch."""
    with autocast(settings):
        return loss(run(x), target)


@torch.no_grad()
def judge(settings: Settings, model: nn.Module, share: int = 1) -> tuple[float, float]:
    """Mean loss and accuracy on every `share`-th held-out input."""
    model.eval()
    total, correct, count = 0.0, 0.0, 0
    for x, target in zip(*(part.split(JUDGED) for part in of(settings).judged(share)), strict=True):
        with autocast(settings):
            logits = model(x)
        total += float(loss(logits, target)) * len(x)
        correct += right(logits, target) * len(x)
        count += len(x)
    model.train()
    return total / count, correct / count


def _judged(settings: Settings, model: nn.Module) -> dict[str, float | None]:
    final, accuracy = judge(settings, model)
    return {"loss": final if math.isfinite(final) else None, "accuracy": accuracy}


def counted(call: Callable[[], Tensor], model: nn.Module) -> tuple[Tensor, int]:
    """The result of `call`, and the bytes that it saves for backward, including the batch."""
    with Recorder(model) as recorder:
        value = call()
    saved = recorder.saved(value)
    return value, saved.total + saved.inputs


@contextmanager
def conditions(settings: Settings) -> Iterator[None]:
    """A context with the settings' threads and, on a GPU, deterministic kernels where they exist."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(settings.device == "cuda" or deterministic, warn_only=True)
    try:
        with torch_threads(settings.threads):
            yield
    finally:
        torch.use_deterministic_algorithms(deterministic)


def optimiser_of(settings: Settings, model: nn.Module) -> torch.optim.Optimizer:
    """The usual optimiser: AdamW for a transformer, SGD with momentum for a ResNet."""
    if settings.task in (*TEXTS, variants.SMALL_VIT):
        return torch.optim.AdamW(model.parameters(), lr=settings.rate, weight_decay=0.01)
    return torch.optim.SGD(model.parameters(), lr=settings.rate, momentum=0.9, weight_decay=5e-4)


def share_of_rate(step: int, steps: int) -> float:
    """The rate at a step, as a share of the highest."""
    begin = max(1, round(WARM_UP * steps))
    if step < begin:
        return (step + 1) / begin
    return 0.5 * (1 + math.cos(math.pi * (step - begin) / max(1, steps - begin)))


def _clock(settings: Settings) -> float:
    if settings.device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()  # other processes may use the CPU


def _short(value: Tensor | float) -> float | None:
    """Rounded to six digits; None, which JSON can hold, if not finite."""
    return float(f"{float(value):.6g}") if math.isfinite(value) else None
