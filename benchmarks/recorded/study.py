"""Trainings whose activations' inputs are recorded, few-bit tables of them, and the gradient errors of the tables."""

import copy
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import add
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.recorded import JUDGED
from benchmarks.training.runs import Settings, conditions, forward, of, optimiser_of, share_of_rate, start
from benchmarks.training.variants import STOCK
from coefficients import load
from coefficients.document import dumps, seal
from coefficients.files import write_text
from fitting.activations import get
from fitting.fewbit import judge
from fitting.fewbit.curve import Curve
from fitting.fewbit.document import to_document
from fitting.fewbit.solve import Errors, Fit, fit
from fitting.weights import from_distribution, from_samples
from kernels import convert
from kernels.record import Histogram, recorded

FUNCTION = "gelu"
EARLY = 100  # steps
RECORDED = 8  # batches that a histogram counts
SAMPLES = 1 << 12  # that represent a histogram
OTHERS = {"recorded": 2_000_003, "judged": 1_000_003}  # added to the seed, for batches that differ from the training's

Tables = Mapping[str, str | Path]  # by the name of the site; "" for all sites
Gradient = list[Tensor]


@dataclass(frozen=True)
class Stage:
    """A network after some steps of training.

    Attributes
    ----------
    steps
        Steps done.
    model
        A copy, with stock's activations.
    histograms
        Of each activation's inputs, by the name of its module.
    """

    steps: int
    model: nn.Module
    histograms: dict[str, Histogram]

    def together(self) -> Histogram:
        """The sum of all histograms."""
        return reduce(add, self.histograms.values())

    def size(self) -> float:
        """The root mean square of all inputs."""
        samples = torch.from_numpy(self.together().samples())
        return float(samples.square().mean().sqrt())


def stages(settings: Settings, seed: int) -> list[Stage]:
    """The network after 0, EARLY and all steps of a training with stock activations."""
    at_steps = {0, min(EARLY, settings.steps), settings.steps}
    with conditions(settings):
        return [_stage(settings, step, model, seed) for step, model in trained(settings, seed, at_steps)]


def trained(settings: Settings, seed: int, at_steps: Container[int]) -> Iterator[tuple[int, nn.Module]]:
    """Yield the network, which goes on to change, after these steps of a training with stock activations."""
    with conditions(settings):
        model, data = start(settings, STOCK, seed), of(settings)
        optimiser = optimiser_of(settings, model)
        batches = torch.Generator().manual_seed(seed)
        for step in range(settings.steps + 1):
            if step in at_steps:
                yield step, model
            if step == settings.steps:
                return
            for group in optimiser.param_groups:
                group["lr"] = settings.rate * share_of_rate(step, settings.steps)
            optimiser.zero_grad(set_to_none=True)
            forward(settings, model, *data.batch(settings.batch, batches)).backward()
            optimiser.step()


def _stage(settings: Settings, step: int, model: nn.Module, seed: int) -> Stage:
    model = copy.deepcopy(model)
    batches = torch.Generator().manual_seed(seed + OTHERS["recorded"])
    with torch.no_grad(), recorded(model) as histograms:
        for _ in range(RECORDED):
            forward(settings, model, *of(settings).batch(settings.batch, batches))
    return Stage(step, model, {name.removesuffix(f".{FUNCTION}"): histogram for name, histogram in histograms.items()})


def usual_table(bits: int, folder: Path) -> Path:
    """The table for N(0, 1), which needs no recording."""
    return _written(fitted(bits), folder / f"normal-{bits}.json")


def recorded_tables(stage: Stage, bits: int, folder: Path, level: bool = False) -> dict[str, Path]:
    """A table for each activation, from its own histogram. level: see `levelled`."""
    paths = {}
    for name, histogram in stage.histograms.items():
        path = folder / f"{name}-{stage.steps}-{bits}{'-level' * level}.json"
        made = fitted(bits, tuple(histogram.samples(SAMPLES)))
        paths[name] = _written(levelled(made) if level else made, path)
    return paths


def common_table(stage: Stage, bits: int, folder: Path) -> Path:
    """One table for all activations, from the sum of their histograms."""
    made = fitted(bits, tuple(stage.together().samples(SAMPLES)))
    return _written(made, folder / f"together-{stage.steps}-{bits}.json")


@lru_cache(256)
def fitted(bits: int, samples: tuple[float, ...] = ()) -> Fit:
    """The best table for samples, or for N(0, 1)."""
    return fit(get(FUNCTION), bits, weight=from_samples(samples) if samples else from_distribution("norm"))


def levelled(made: Fit) -> Fit:
    """The table with levels moved so that its error d has no part that is constant or proportional to x.

    Mean d and mean x d are 0. Of all such levels, the nearest: each moves by a + b times its code's mean x.
    """
    x = made.weight.samples
    if x is None:
        raise ValueError("only tables of samples can be levelled")
    steps, exact = made.steps, made.activation.df(x)
    codes = steps.codes[np.searchsorted(steps.borders, x, side="left")]
    counts = np.bincount(codes, minlength=len(steps.levels))
    middles = np.bincount(codes, x, minlength=len(steps.levels)) / np.maximum(counts, 1)
    moved = np.stack([np.ones(len(x)), middles[codes]])
    missed = exact - steps.levels[codes]
    a, b = np.linalg.lstsq(np.stack([np.ones(len(x)), x]) @ moved.T, np.stack([np.ones(len(x)), x]) @ missed, None)[0]
    levels = steps.levels + a + b * middles
    error = levels[codes] - exact
    l2, bound, moved_steps = float(np.mean(error**2)), made.error.lower_bound, replace(steps, levels=levels)
    largest, at = judge.linf(Curve(made.activation, *made.domain), moved_steps)
    return replace(made, steps=moved_steps, error=Errors(l2, largest, at, bound, (l2 - bound) / l2 if l2 else 0.0))


def derivative_errors(stage: Stage, bits: int, tables: Tables | None) -> tuple[float, float]:
    """Of the tables' error d of f' over the stage's recorded inputs: the root mean square, and mean x d / mean x^2, the
    slope of its part that is proportional to x."""
    missed, inputs = [], []
    for name, histogram in stage.histograms.items():
        path = None if tables is None else tables.get(name, tables.get(""))
        solution = (load(FUNCTION, f"fewbit-{bits}bit") if path is None else load(str(path)))["solution"]
        x = histogram.samples(SAMPLES)
        codes = np.array(solution["codes"])[np.searchsorted(solution["borders"], x, side="left")]
        missed.append(np.array(solution["levels"])[codes] - get(FUNCTION).df(x))
        inputs.append(x)
    d, x = np.concatenate(missed), np.concatenate(inputs)
    return float(np.sqrt(np.mean(d**2))), float(np.mean(x * d) / np.mean(x**2))


def _written(made: Fit, path: Path) -> Path:
    if not path.exists():
        write_text(path, dumps(seal(to_document(made), 1)))
    return path


def stock_gradients(settings: Settings, stage: Stage, seed: int) -> list[Gradient]:
    """Stock's gradients of the JUDGED batches."""
    with conditions(settings):
        return list(_gradients(settings, stage.model, seed))


def errors(
    settings: Settings, stage: Stage, bits: int, tables: Tables | None, exact: list[Gradient], seed: int
) -> list[float]:
    """|a - g| / |g| of each batch: g is stock's gradient of all weights together, a the one by tables.

    tables: None for those of the package.
    """
    model = copy.deepcopy(stage.model)
    files = {name: tables.get(name, tables.get("")) for name in stage.histograms} if tables is not None else None
    convert(model, "fewbit", bits=bits, coefficients=files)
    with conditions(settings):
        approximate = _gradients(settings, model, seed)
        return [_distance(own, stock) for own, stock in zip(approximate, exact, strict=True)]


def _gradients(settings: Settings, model: nn.Module, seed: int) -> Iterator[Gradient]:
    batches = torch.Generator().manual_seed(seed + OTHERS["judged"])
    for _ in range(JUDGED):
        value = forward(settings, model, *of(settings).batch(settings.batch, batches))
        yield list(torch.autograd.grad(value, list(model.parameters())))


def _distance(gradient: Gradient, stock: Gradient) -> float:
    missed = sum(float((own - exact).double().square().sum()) for own, exact in zip(gradient, stock, strict=True))
    whole = sum(float(exact.double().square().sum()) for exact in stock)
    return float((missed / whole) ** 0.5)
