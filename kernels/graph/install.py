"""Puts an engine into the modules of a model that are captured one by one, and takes it out again."""

from collections.abc import Collection
from typing import Any, cast

from torch import nn

from actfit.kernels.errors import KernelError
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
            module.forward = call = Captured(module, name, engine, own)
            if call.is_given_up:
                call.split()
    return changed


def not_compressed(model: nn.Module) -> None:
    """Raise KernelError for a model of which a part is compressed."""
    for name, module in model.named_modules():
        if isinstance(module.__dict__.get("forward"), Captured | Head):
            which = f"its module {name!r}" if name else "it"
            raise KernelError(f"model must not be compressed already, but {which} is; call remove() of its handle")


def removed(changed: list[tuple[str, nn.Module]]) -> None:
    """Give modules that `install` gave, and parts of them, back their own forward."""
    for module in [inner for _, outer in changed for inner in outer.modules()]:
        call = module.__dict__.get("forward")
        if isinstance(call, Captured | Head):
            del module.__dict__["forward"]
            if call.own is not None:
                module.__dict__["forward"] = call.own
