"""How models are made under fake tensors, which have no numbers to ask for."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, unset_fake_temporarily
from torch.overrides import TorchFunctionMode


def imported(module: str, attribute: str) -> Any:
    """An attribute of a module, by their names; the import is under no fake mode, whose tensors must not stay in it."""
    with unset_fake_temporarily():
        return getattr(import_module(module), attribute)


def line(error: Exception) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


class _Settled(TorchFunctionMode):
    """Says no where torch.nn.init asks whether some element of a fake tensor is still out of bounds (trunc_normal_)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except DataDependentOutputException:
            # Nobody else's questions: a model that branches on its numbers must not be built wrong in silence.
            if func is not Tensor.__bool__ or sys._getframe(1).f_globals.get("__name__") != "torch.nn.init":
                raise
            return False


@contextmanager
def building(dtype: torch.dtype) -> Iterator[None]:
    """With `dtype` as torch's default, and initialisation that need not look at numbers."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with _Settled():
            yield
    finally:
        torch.set_default_dtype(before)
