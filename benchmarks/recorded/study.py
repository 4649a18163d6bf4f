"""A training whose activations' inputs are recorded on the way, tables of them, and the errors of their gradients."""

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from operator import add
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.training.runs import Settings, conditions, forward, of, optimiser_of, share_of_rate, start
from benchmarks.training.variants import STOCK
from coefficients.document import dumps, seal
from coefficients.files import write_text
from fitting.activations import get
from fitting.fewbit.document import to_document
from fitting.fewbit.solve import fit
from fitting.weights import Weight, from_distribution, from_samples
from kernels import convert
from kernels.record import Histogram, recorded

FUNCTION = "gelu"
EARLY = 100  # steps
RECORDED = 8  # batches that a histogram counts
JUDGED = 16  # batches whose gradients are compared
OTHERS = {"recorded": 2_000_003, "judged": 1_000_003}  # added to the seed: batches that the training did not see so

Tables = Mapping[str, str | Path]  # by the names of sites; a single "" for all of them
Gradient = list[Tensor]


@dataclass(frozen=True)
class Stage:
    """A network after so many steps.

    Attributes
    ----------
    steps
        Done.
    model
        A copy, with stock's activations.
    histograms
        Of what each activation is given, by the names of their modules.
    """

    steps: int
    model: nn.Module
    histograms: dict[str, Histogram]

    def together(self) -> Histogram:
        """Of all activations."""
        return reduce(add, self.histograms.values())

    def size(self) -> float:
        """The root mean square of all inputs."""
        samples = torch.from_numpy(self.together().samples())
        return float(samples.square().mean().sqrt())


def stages(settings: Settings, seed: int) -> list[Stage]:
    """The network after 0, EARLY and all steps of a training by stock."""
    wanted = sorted({0, min(EARLY, settings.steps), settings.steps})
    found = []
    with conditions(settings):
        model, data = start(settings, STOCK, seed), of(settings)
        optimiser = optimiser_of(settings, model)
        batches = torch.Generator().manual_seed(seed)
        for step in range(settings.steps + 1):
            if step in wanted:
                found.append(_stage(settings, step, model, seed))
            if step == settings.steps:
                break
            for group in optimiser.param_groups:
                group["lr"] = settings.rate * share_of_rate(step, settings.steps)
            optimiser.zero_grad(set_to_none=True)
            forward(settings, model, *data.batch(settings.batch, batches)).backward()
            optimiser.step()
    return found


def _stage(settings: Settings, step: int, model: nn.Module, seed: int) -> Stage:
    model = copy.deepcopy(model)
    batches = torch.Generator().manual_seed(seed + OTHERS["recorded"])
    with torch.no_grad(), recorded(model) as histograms:
        for _ in range(RECORDED):
            forward(settings, model, *of(settings).batch(settings.batch, batches))
    return Stage(step, model, {name.removesuffix(f".{FUNCTION}"): one for name, one in histograms.items()})


def usual_table(bits: int, folder: Path) -> Path:
    """The table for N(0, 1), which every network could take without looking at anything."""
    return _table(bits, _normal(), folder / f"normal-{bits}.json")


def recorded_tables(stage: Stage, bits: int, folder: Path) -> dict[str, Path]:
    """A table for each activation, from its own histogram."""
    return {
        name: _table(bits, from_samples(histogram.samples()), folder / f"{_file(name)}-{stage.steps}-{bits}.json")
        for name, histogram in stage.histograms.items()
    }


def common_table(stage: Stage, bits: int, folder: Path) -> Path:
    """One table for all activations, from the sum of their histograms."""
    return _table(bits, from_samples(stage.together().samples()), folder / f"together-{stage.steps}-{bits}.json")


@cache
def _normal() -> Weight:
    return from_distribution("norm")


def _table(bits: int, weight: Weight, path: Path) -> Path:
    if not path.exists():
        write_text(path, dumps(seal(to_document(fit(get(FUNCTION), bits, weight=weight)), 1)))
    return path


def _file(name: str) -> str:
    return re.sub(r"\W", "_", name)


def stock_gradients(settings: Settings, stage: Stage, seed: int) -> list[Gradient]:
    """Of the batches that are judged."""
    with conditions(settings):
        return list(_gradients(settings, stage.model, seed))


def errors(
    settings: Settings, stage: Stage, bits: int, tables: Tables | None, exact: list[Gradient], seed: int
) -> list[float]:
    """|a - g| / |g| of each batch: g is the gradient of all weights together, a the one by tables.

    tables: None for the one that comes with the package.
    """
    model = copy.deepcopy(stage.model)
    for site in ("",) if tables is None else tables:
        path = None if tables is None else tables[site]
        convert(model, "fewbit", bits=bits, coefficients=path, include=[site] if site else None)
    with conditions(settings):
        found = _gradients(settings, model, seed)
        return [_distance(own, stock) for own, stock in zip(found, exact, strict=True)]


def _gradients(settings: Settings, model: nn.Module, seed: int) -> Iterator[Gradient]:
    batches = torch.Generator().manual_seed(seed + OTHERS["judged"])
    for _ in range(JUDGED):
        value = forward(settings, model, *of(settings).batch(settings.batch, batches))
        yield list(torch.autograd.grad(value, list(model.parameters())))


def _distance(gradient: Gradient, stock: Gradient) -> float:
    missed = sum(float((own - exact).double().square().sum()) for own, exact in zip(gradient, stock, strict=True))
    whole = sum(float(exact.double().square().sum()) for exact in stock)
    return float((missed / whole) ** 0.5)
