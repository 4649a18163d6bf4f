"""How far each variant's gradients are from stock's, layer by layer, beside the noise of the batches themselves.

At stock's weights before and after a training, on the same n batches b, for each tensor of weights; g_b is stock's
gradient, a_b the variant's, and g, the mean of the g_b, estimates the gradient over all data:

    of batch  mean of |a_b - g_b| / |g_b|
    error     sqrt(mean of |a_b - g_b|^2) / |g|
    bias      |mean of (a_b - g_b)| / |g|, which more batches do not average out; up to error / sqrt(n) is chance
    noise     sqrt(sum of |g_b - g|^2 / (n - 1)) / |g|, of stock: what a batch adds to the gradient

Error, bias and noise have the same denominator, so that they compare. |g| itself contains noise, so the noise comes out
too small, and at most sqrt(n): the variants look worse beside it than they are.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.training.runs import Settings, autocast, conditions, first_batch, forward, of, start, train
from benchmarks.training.variants import STOCK, runner

BATCHES = {"quick": 4, "small": 32, "large": 32}
OTHER = 1_000_003  # added to the seed, for batches that differ from the training's
STATES = ("initial", "final")
NOISE = "noise"  # in the place of a variant

Gradients = list[Tensor]  # of each tensor of weights, in their order


def measure(settings: Settings, names: Sequence[str], seed: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield state, variant (or NOISE) and the numbers above, in the order of `layers`."""
    with conditions(settings):
        before = copy.deepcopy(start(settings, STOCK, seed).state_dict())
    after = train(settings, STOCK, seed)[0].state_dict()
    with conditions(settings):
        for state, weights in zip(STATES, (before, after), strict=True):
            model = _model(settings, STOCK, seed, weights)
            layers = [name for name, _ in model.named_parameters()]
            stock = list(_all(settings, model, STOCK, seed))
            mean = [torch.stack(parts).mean(0) for parts in zip(*stock, strict=True)]
            yield state, NOISE, {"layers": layers, "noise": _noise(stock, mean)}
            for variant in names:
                if variant != STOCK:
                    model = _model(settings, variant, seed, weights)
                    compared = compare(_all(settings, model, variant, seed), stock, mean)
                    yield state, variant, {"layers": layers, **compared}


def compare(
    of_variant: Iterator[Gradients], stock: Sequence[Gradients], mean: Gradients
) -> dict[str, list[float | None]]:
    """`of batch`, `error` and `bias`, each with a number for each layer."""
    relative, squared = torch.zeros(len(mean)), torch.zeros(len(mean))
    total = [torch.zeros_like(gradient) for gradient in mean]
    for theirs, exact in zip(of_variant, stock, strict=True):
        for i, (a, g) in enumerate(zip(theirs, exact, strict=True)):
            miss = a - g
            total[i] += miss
            squared[i] += float(miss.norm()) ** 2
            relative[i] += float(miss.norm() / g.norm())
    count, sizes = len(stock), torch.tensor([float(gradient.norm()) for gradient in mean])
    bias = torch.tensor([float(gradient.norm()) for gradient in total]) / count / sizes
    numbers = {"of batch": relative / count, "error": (squared / count).sqrt() / sizes, "bias": bias}
    return {name: _short(values) for name, values in numbers.items()}


def _noise(stock: Sequence[Gradients], mean: Gradients) -> list[float | None]:
    norms_of = []
    for parts, middle in zip(zip(*stock, strict=True), mean, strict=True):
        squared = sum(float((part - middle).norm()) ** 2 for part in parts) / (len(parts) - 1)
        norms_of.append(squared**0.5 / float(middle.norm()))
    return _short(torch.tensor(norms_of))


def _model(settings: Settings, variant: str, seed: int, weights: dict[str, Tensor]) -> nn.Module:
    model = start(settings, variant, seed)
    model.load_state_dict(weights)
    return model


def _all(settings: Settings, model: nn.Module, variant: str, seed: int) -> Iterator[Gradients]:
    """The gradients of each batch, the same batches for all models."""
    drawn, data_of = torch.Generator().manual_seed(seed + OTHER), of(settings)
    with autocast(settings):
        run = runner(model, variant, first_batch(settings, seed))
    for _ in range(BATCHES[settings.size]):
        value = forward(settings, run, *data_of.batch(settings.batch, drawn))
        yield list(torch.autograd.grad(value, list(model.parameters())))


def _short(values: Tensor) -> list[float | None]:
    """Each rounded to four digits; None, which JSON can hold, if not finite."""
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values.tolist()]
