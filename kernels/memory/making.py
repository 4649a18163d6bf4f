"""Builds models under fake tensors, which have no values."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from actfit.kernels import private


def imported(module: str, attribute: str) -> Any:
    """An attribute of a module, by name; imported outside of fake mode, so that the module holds no fake tensors."""
    with private.unset_fake_temporarily():
        return getattr(import_module(module), attribute)


def line(error: Exception) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


class _Settled(TorchFunctionMode):
    """Answers False when torch.nn.init (trunc_normal_) asks whether an element of a fake tensor is out of bounds.

    Copies fake tensors, as nn.Transformer does with its layers, as others of their mode; PyTorch would copy the mode.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and private.is_fake(args[0]):
            return _copied(*args)
        try:
            return func(*args, **(kwargs or {}))
        except private.DataDependentOutputException:
            # Only for torch.nn.init: a model that branches on its values must raise, not be built wrong.
            if func is not Tensor.__bool__ or sys._getframe(1).f_globals.get("__name__") != "torch.nn.init":
                raise
            return False


def _copied(x: Tensor, memo: dict[int, Any]) -> Tensor:
    made = x.detach().clone()
    memo[id(x)] = copied = nn.Parameter(made) if isinstance(x, nn.Parameter) else made
    return copied.requires_grad_(x.requires_grad)


@contextmanager
def building(dtype: torch.dtype) -> Iterator[None]:
    """Sets `dtype` as torch's default, and lets initialisation run without reading values."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with _Settled():
            yield
    finally:
        torch.set_default_dtype(before)
