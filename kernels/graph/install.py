"""Puts an engine into a model, and takes it out again."""

from collections.abc import Collection
from typing import Any, cast

from torch import nn

from actfit.kernels.graph.capture import Captured
from actfit.kernels.graph.engine import Engine
from actfit.kernels.graph.units import units
from actfit.kernels.head.heads import Head, is_head


def install(model: nn.Module, engine: Engine, unchanged: Collection[str] = ()) -> list[tuple[str, nn.Module]]:
    """Let an engine capture a model, but these blocks; the names and modules that it changes."""
    found = units(model, engine.method is not None, engine.chunked_loss)
    changed = [(name, module) for name, module in found if name not in unchanged]
    for name, module in changed:
        own: Any = module.__dict__.get("forward")
        if engine.chunked_loss and is_head(module):
            module.forward = Head(cast(nn.Linear, module), name, own)
        else:
            module.forward = Captured(module, name, engine, own)
    return changed


def removed(captured: list[tuple[str, nn.Module]]) -> None:
    """Give modules that `install` gave back their own forward."""
    for _, module in captured:
        call = module.__dict__.get("forward")
        if isinstance(call, Captured | Head):
            del module.__dict__["forward"]
            if call.own is not None:
                module.__dict__["forward"] = call.own
