"""Bytes that whole models keep for backward, of `benchmarks.approx_backprop`.

What runs in eager runs on fake tensors and is counted as CUDA keeps it; what is compiled runs for real, and is counted
as it runs. So the numbers are those of every machine.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib import metadata
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from benchmarks.approx_backprop.nets import CHECKPOINT, EIGHT, FOUR, FUSED, GROUPS, STOCK, digits, keep
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

Model = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]  # and how it is called


def ways_of(name: str) -> tuple[str, ...]:
    """Ways of keeping it: those with blocks have checkpoint, too."""
    return WAYS if name in ZOO else (*WAYS, CHECKPOINT)


def models(names: Sequence[str], where: Mapping[str, Any]) -> list[Row]:
    """Each model by each of its ways, in bytes."""
    where = {**where, "versions": {**where["versions"], "transformers": metadata.version("transformers")}}
    rows = []
    for name in names:
        for way in ways_of(name):
            total, dtype = kept(name, way)
            rows.append(Row("kept by a model", way, name, {}, dtype, "B", **where, **summary([float(total)])))
    return rows


def kept(name: str, way: str) -> tuple[int, str]:
    """Bytes, and the dtype of the model's parameters."""
    with nullcontext() if name == COMPILED else FakeTensorMode():
        model, args, kwargs = _model(name)
    keep(model, way, None if name in DIGITS else kwargs or args)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return _counted(name, model, args, kwargs), dtype


def _model(name: str) -> Model:
    if name in ZOO:
        return zoo.build(name)
    return digits(DIGITS.get(name, DEPTHS[0])).train(), (torch.randn(BATCH, 1, 8, 8),), {}


def _counted(name: str, model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    if name != COMPILED:
        return saved_bytes(model, *args, accounting="cuda", fake=True, **kwargs).total
    torch.compiler.reset()  # so that no limit of recompilations makes it run eager
    return saved_bytes(torch.compile(model, backend=PARTITIONER, dynamic=False), *args, **kwargs).total
