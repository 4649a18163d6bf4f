"""Bytes that whole models keep for backward, of `benchmarks.approx_backprop`.

Eager models run on fake tensors and are counted as CUDA saves them; compiled models run for real and are counted as
they run. So the numbers are the same on every machine.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib import metadata
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from benchmarks.approx_backprop.nets import CHECKPOINT, EIGHT, FOUR, FUSED, GROUPS, STOCK, apply_way, digits
from benchmarks.forward_ad.cases import PARTITIONER
from benchmarks.rows import Row, summary
from kernels import saved_bytes
from kernels.memory import zoo

WAYS = (STOCK, FUSED, EIGHT, FOUR, GROUPS)
ZOO = ("resnet50", "efficientnet-b0", "vgg16", "bert", "vit", "gpt2", "llama")
DEPTHS = (20, 56, 164)
DIGITS = {f"ResNet-{depth}, 8×8": depth for depth in DEPTHS}
COMPILED = f"ResNet-{DEPTHS[0]}, 8×8, compiled"
NAMES = (*ZOO, *DIGITS, COMPILED)
BATCH = 64  # of digits

Model = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]  # with its arguments


def ways_of(name: str) -> tuple[str, ...]:
    """The ways of a model; only those with blocks have checkpoint."""
    return WAYS if name in ZOO else (*WAYS, CHECKPOINT)


def models(names: Sequence[str], where: Mapping[str, Any]) -> list[Row]:
    """Rows of each model in each of its ways, in bytes."""
    where = {**where, "versions": {**where["versions"], "transformers": metadata.version("transformers")}}
    rows = []
    for name in names:
        for way in ways_of(name):
            total, dtype = kept(name, way)
            rows.append(Row("kept by a model", way, name, {}, dtype, "B", **where, **summary([float(total)])))
    return rows


def kept(name: str, way: str) -> tuple[int, str]:
    """Bytes saved for backward, and the dtype of the model's parameters."""
    with nullcontext() if name == COMPILED else FakeTensorMode():
        model, args, kwargs = _model(name)
    apply_way(model, way, None if name in DIGITS else kwargs or args)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return _counted(name, model, args, kwargs), dtype


def _model(name: str) -> Model:
    if name in ZOO:
        return zoo.build(name)
    return digits(DIGITS.get(name, DEPTHS[0])).train(), (torch.randn(BATCH, 1, 8, 8),), {}


def _counted(name: str, model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    if name != COMPILED:
        return saved_bytes(model, *args, accounting="cuda", fake=True, **kwargs).total
    torch.compiler.reset()  # else torch's limit of recompilations makes it run eager
    return saved_bytes(torch.compile(model, backend=PARTITIONER, dynamic=False), *args, **kwargs).total
