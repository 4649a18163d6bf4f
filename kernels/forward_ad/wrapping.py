"""Nested forward AD for a module: its forward runs in `nested_forward_ad`."""

from typing import Any

import torch
from torch import nn

from kernels import private
from kernels.errors import KernelError
from kernels.forward_ad.eager import MIN_NUMEL, nested_forward_ad
from kernels.forwarding import Forwarding


class Wrapped(Forwarding):
    """Replaces the forward of `module`, or its earlier replacement, and runs it in `nested_forward_ad`.

    Under torch.compile and torch.export it runs the forward itself: a compiler sees the whole graph and its chains.
    """

    def __init__(self, module: nn.Module, min_numel: int) -> None:
        super().__init__(module)
        nested_forward_ad(min_numel=min_numel)  # raises for an invalid value
        self.min_numel = min_numel

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.original(*args, **kwargs)
        with nested_forward_ad(min_numel=self.min_numel) as mode:
            return mode.end(self.original(*args, **kwargs))


def wrap(model: nn.Module, *, min_numel: int = MIN_NUMEL) -> nn.Module:
    """The same model, whose forward runs in `nested_forward_ad` from now on; `unwrap` undoes it.

    Its parameters, names and modules stay as they are.

    Parameters
    ----------
    model
        Any module but DataParallel, whose replicas would run the unwrapped model.
    min_numel
        As for `nested_forward_ad`.

    Raises
    ------
    KernelError
        For a model that cannot be wrapped.
    """
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise KernelError(f"model must be a torch.nn.Module that runs in Python, got {type(model).__name__}")
    if private.is_compiled_module(model) or isinstance(model, nn.DataParallel):
        raise KernelError(f"model must be wrapped before others wrap it, got {type(model).__name__}")
    if type(model).forward is nn.Module.forward:
        raise KernelError(f"model must have a forward, got {type(model).__name__}; wrap the model that it is part of")
    if isinstance(vars(model).get("forward"), Wrapped):
        raise KernelError(f"model must not be wrapped already, got a {type(model).__name__} that is; unwrap it first")
    model.forward = Wrapped(model, min_numel)
    return model


def unwrap(model: nn.Module) -> nn.Module:
    """The same model as it was before `wrap`.

    Raises
    ------
    KernelError
        For a model that is not wrapped.
    """
    present = vars(model).get("forward") if isinstance(model, nn.Module) else None
    if not isinstance(present, Wrapped):
        raise KernelError(f"model must be one that is wrapped, got a {type(model).__name__} that is not")
    del model.forward
    if present.before is not None:
        model.forward = present.before
    return model
