"""Seconds of forward and backward, of `benchmarks.approx_backprop`: each way beside stock, in the same rounds.

The exact rival that saves less is torch's checkpoint of each block, which computes the block again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.approx_backprop.nets import CHECKPOINT, CLASSES, EIGHT, FOUR, FUSED, STOCK, apply_way, cifar, digits
from benchmarks.clock import clock_of, ratio_rows, rounds
from benchmarks.kernels.cases import Call
from benchmarks.rows import Row
from benchmarks.training.nets import ViT

WAYS = (STOCK, FUSED, EIGHT, FOUR, CHECKPOINT)
EAGER, COMPILED = "eager", "compiled"
Made = Callable[[], tuple[nn.Module, Tensor]]


def _digits(depth: int) -> Made:
    return lambda: (digits(depth), torch.randn(64, 1, 8, 8))


def _cifar(depth: int, batch: int) -> Made:
    return lambda: (cifar(depth), torch.randn(batch, 3, 32, 32))


def _vit(width: int, layers: int, batch: int) -> Made:
    return lambda: (ViT(CLASSES, width, layers), torch.randn(batch, 1, 8, 8))


NETS: dict[str, dict[str, Made]] = {
    "cpu": {
        "ResNet-20, 8×8, 64 images": _digits(20),
        "ResNet-56, 8×8, 64 images": _digits(56),
        "ViT, 64 wide, 4 layers, 64 images": _vit(64, 4, 64),
    },
    "cuda": {
        "ResNet-56, 32×32, 256 images": _cifar(56, 256),
        "ResNet-164, 32×32, 256 images": _cifar(164, 256),
        "ViT, 768 wide, 12 layers, 512 images": _vit(768, 12, 512),
    },
}


def calls(make: Made, mode: str, device: torch.device) -> dict[str, Call]:
    """By way, a call of forward and backward; all have the same weights and input."""
    made = {}
    for way in WAYS:
        torch.manual_seed(0)
        model, x = make()
        apply_way(model, way, (x,))
        model, x = model.to(device).train(), x.to(device)
        if mode == COMPILED:
            model = torch.compile(model, dynamic=False)
        made[way] = _step(model, x)
    return made


def _step(model: nn.Module, x: Tensor) -> Call:
    parameters = [*model.parameters()]
    return lambda: torch.autograd.grad(model(x).square().mean(), parameters)


def times(names: Sequence[str], runs: int, device: torch.device, where: Mapping[str, Any]) -> Iterator[list[Row]]:
    """Yield each net's rows, in eager mode and, on a GPU, compiled."""
    for name in names:
        for mode in (EAGER, COMPILED) if device.type == "cuda" else (EAGER,):
            torch.compiler.reset()
            clock = clock_of(device)
            taken = rounds(clock, calls(NETS[device.type][name], mode, device), runs)
            seconds = {way: taken_by for way, (taken_by, _) in taken.items()}
            yield ratio_rows({"what": name, "mode": mode, "size": {}, "dtype": "float32", **where}, seconds, STOCK)


def described(rows: Sequence[Row]) -> str:
    """The result in a line, shown while the rest runs."""
    ratios = [row for row in rows if row.unit.startswith("ratio")]
    against = ", ".join(f"{row.implementation.partition(' / ')[0]} {row.median:.2f} ×" for row in ratios)
    return f"{rows[0].what}, {rows[0].mode}: {STOCK} {1000 * rows[0].median:.2f} ms; {against}"
