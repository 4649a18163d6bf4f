"""The networks of `benchmarks.approx_backprop`, and the ways in which they save for backward.

stock: plain torch. fused: one full tensor for each norm, ReLU and convolution together, the paper's "exact". K bits:
approximate backprop by its robust scheme, or by the scheme named.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from benchmarks.baselines.checkpointed import Checkpointed
from benchmarks.training.nets import PreActivated
from kernels import convert

STOCK, FUSED, EIGHT, FOUR, CHECKPOINT = "stock", "fused", "8 bits", "4 bits", "checkpoint"
PAPER, PAPER_EIGHT, GROUPS = "4 bits, paper", "8 bits, paper", "4 bits, group"
OPTIONS: dict[str, dict[str, Any]] = {
    FUSED: {"scheme": "fused"},
    EIGHT: {"bits": 8},
    FOUR: {"bits": 4},
    PAPER_EIGHT: {"bits": 8, "scheme": "paper"},
    PAPER: {"bits": 4, "scheme": "paper"},
    GROUPS: {"bits": 4, "scheme": "group"},
}
CLASSES = 10


def digits(depth: int) -> nn.Module:
    """A pre-activation bottleneck ResNet of `depth` layers for digits, [n, 1, 8, 8], narrow."""
    return PreActivated(CLASSES, 8, _blocks(depth), nn.BatchNorm2d)


def cifar(depth: int, width: int = 16) -> nn.Module:
    """The paper's ResNet for CIFAR-10, [n, 3, 32, 32]."""
    model = PreActivated(CLASSES, width, _blocks(depth), nn.BatchNorm2d)
    model.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
    return model


def _blocks(depth: int) -> int:
    """How many bottlenecks each stage has: there are three stages of three-layer bottlenecks, a stem and a head."""
    return (depth - 2) // 9


def apply_way(model: nn.Module, way: str, inputs: tuple[Any, ...] | Mapping[str, Any] | None = None) -> None:
    """Convert a model in one of the ways; checkpoint applies to each of its `blocks`.

    inputs: the model's. Activations that work in place need them, and compiled models share a code only if a run showed
    that nothing changes its tensor. fused is exact: it leaves activations other than ReLU alone.
    """
    if way == CHECKPOINT:
        for place, block in enumerate(model.blocks):
            model.blocks[place] = Checkpointed(block)
    elif way != STOCK:
        report = _converted(model, way, inputs, ())
        inexact = [site.name for site in report.converted if site.now.startswith("fewbit")]
        if way == FUSED and inexact:
            report.revert()
            _converted(model, way, inputs, inexact)


def _converted(model: nn.Module, way: str, inputs: Any, exclude: Iterable[str]) -> Any:
    return convert(model, method="approx-backprop", inputs=inputs, exclude=[*exclude] or None, **OPTIONS[way])
