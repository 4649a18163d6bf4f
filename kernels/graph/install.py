"""Puts an engine into a model, and takes it out again."""

from typing import Any

from torch import nn

from actfit.kernels.graph.capture import Captured
from actfit.kernels.graph.engine import Engine
from actfit.kernels.graph.units import units


def install(model: nn.Module, engine: Engine) -> list[tuple[str, nn.Module]]:
    """Let an engine capture a model; the names and modules that it captures."""
    captured = list(units(model, leaves=engine.method is not None))
    for name, module in captured:
        own: Any = module.__dict__.get("forward")
        module.forward = Captured(module, name, engine, own)
    return captured


def removed(captured: list[tuple[str, nn.Module]]) -> None:
    """Give modules that `install` gave back their own forward."""
    for _, module in captured:
        call = module.__dict__.get("forward")
        if isinstance(call, Captured):
            del module.__dict__["forward"]
            if call.own is not None:
                module.__dict__["forward"] = call.own
