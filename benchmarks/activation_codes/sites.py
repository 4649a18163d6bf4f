"""Activations of networks with random and with trained weights, and the gradients of the weights around them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.activation_codes.codes import Pair, exact
from benchmarks.compression.models import Net
from benchmarks.planning import nets
from benchmarks.recorded.study import trained
from benchmarks.training import jobs
from benchmarks.training.runs import Settings, forward, of
from kernels.eager.tensors import group_of

RANDOM = {"BERT": "gelu", "Llama": "silu"}
TRAINED = {"GPT on the text": "text", "ViT on the digits": "vit", "Llama on the text": "llama"}
OTHER = 1_000_003  # added to the seed, for batches that differ from the training's
Run = Callable[[], Any]  # forward and backward of a batch


@dataclass(frozen=True)
class Site:
    """down(f(first(h))), or of a gate down(f(first(h)) * up(h)), in one run.

    Attributes
    ----------
    hidden, x
        h and first(h), [rows, features].
    factor
        up(h), or None.
    gradient, weight
        Of down: the gradient of its output, [rows, features], and its weight.
    group
        Neighbours of x that share a minimum and a step in `compress`.
    """

    hidden: Tensor
    x: Tensor
    factor: Tensor | None
    gradient: Tensor
    weight: Tensor
    group: int

    def gradients(self, pair: Pair) -> tuple[Tensor, Tensor]:
        """Gradients of the weights of `first` and `down`, with these numbers for f'(x) and f(x)."""
        derivative, output = pair
        factor = 1.0 if self.factor is None else self.factor
        inner = (self.gradient @ self.weight) * factor * derivative
        return inner.T @ self.hidden, self.gradient.T @ (output * factor)

    def errors(self, function: str, pair: Pair) -> list[float]:
        """Of both gradients, relative to their lengths."""
        both = zip(self.gradients(pair), self.gradients(exact(function, self.x)), strict=True)
        return [float((own - right).norm() / right.norm()) for own, right in both]


@dataclass(frozen=True)
class Network:
    """Runs of one network: the first to record, the second to judge."""

    function: str
    module: nn.Module
    runs: tuple[Run, Run]

    def sites(self) -> Iterator[tuple[Site, Site]]:
        """Yield each activation in both runs."""
        yield from zip(*(list(_recorded(self.module, run)) for run in self.runs), strict=True)


def network(name: str, seed: int, quick: bool) -> Network:
    """A network by its name in RANDOM or TRAINED."""
    if name in RANDOM:
        case = nets.build(name, nets.TINY["BERT"] if quick else nets.SMALL[name], seed)
        losses = [Net(case.module, [], *case.batches[place]) for place in range(2)]
        return Network(RANDOM[name], case.module, tuple(partial(_step, net) for net in losses))  # type: ignore[arg-type]
    settings = jobs.settings(TRAINED[name], "quick" if quick else "small", "cpu", 1, False)
    ((_, module),) = trained(settings, seed, {settings.steps})
    generator = torch.Generator().manual_seed(seed + OTHER)
    batches = [of(settings).batch(settings.batch, generator) for _ in range(2)]
    first, second = (partial(_trained_step, settings, module, *batch) for batch in batches)
    return Network(settings.activation, module, (first, second))


def _step(net: Net) -> None:
    net.loss(net.module).backward()


def _trained_step(settings: Settings, module: nn.Module, x: Tensor, target: Tensor) -> None:
    forward(settings, module, x, target).backward()


def _layers(module: nn.Module) -> Iterator[tuple[nn.Linear, nn.Linear, nn.Linear | None]]:
    """Yield the linear layers before and after each activation, and the one that makes the factor of a gate."""
    for part in module.modules():
        layers: Any = part
        match type(part).__name__:
            case "BertLayer":
                yield layers.intermediate.dense, layers.output.dense, None
            case "LlamaMLP":
                yield layers.gate_proj, layers.down_proj, layers.up_proj
            case "Layer":  # of `benchmarks.training.models`
                yield layers.mlp[1], layers.mlp[3], None
            case "Gate":
                yield layers.gate, layers.down, layers.up


def _recorded(module: nn.Module, run: Run) -> Iterator[Site]:
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    gradients: dict[nn.Module, Tensor] = {}

    def saw(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen[layer] = inputs[0].detach(), output.detach()

    def saw_gradient(layer: nn.Module, inputs: Any, outputs: tuple[Tensor, ...]) -> None:
        gradients[layer] = outputs[0].flatten(0, -2)

    layers = list(_layers(module))
    with ExitStack() as hooks:
        for first, down, up in layers:
            for layer in filter(None, (first, up)):
                hooks.callback(layer.register_forward_hook(saw).remove)
            hooks.callback(down.register_full_backward_hook(saw_gradient).remove)
        run()
    for first, down, up in layers:
        hidden, x = seen[first]
        factor = None if up is None else seen[up][1].flatten(0, -2)
        rows = hidden.flatten(0, -2), x.flatten(0, -2)
        yield Site(*rows, factor, gradients[down], down.weight.detach(), group_of(x))
