"""Builds models under fake tensors, which have no values; a user's own, given as `package.module:function`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from actfit.kernels import private
from actfit.kernels.errors import KernelError

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


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


def user_model(name: str, dtype: torch.dtype | None) -> Built:
    """What a user's own function gives; raises KernelError, which names it, for whatever goes wrong."""
    module, _, attribute = name.partition(":")
    if module.endswith(".py"):
        dotted = module.removesuffix(".py").replace("/", ".")
        raise KernelError(f"model must be module:function, as {dotted}:{attribute or 'build'}, got {name!r}")
    try:
        function = imported(module, attribute)
    except Exception as error:
        raise KernelError(f"model must be a function that can be imported, got {name!r}: {line(error)}") from error

    def call() -> Built:
        with building(dtype or torch.get_default_dtype()):
            return _checked(name, function())

    mode = getattr(torch.empty(0), "fake_mode", None)
    try:
        if mode is None:
            return call()
        with suppress(AssertionError, RuntimeError):  # torch's own: for a user's bug no real tensors must be made
            model, args, kwargs = built = call()
            leaves = [*model.parameters(), *model.buffers(), *private.tree_leaves((args, kwargs))]
            if all(private.is_fake(leaf) for leaf in leaves if isinstance(leaf, Tensor)):
                return built
        # The function reads values, or uses real tensors: build for real, then make fake copies.
        with private.unset_fake_temporarily():
            built = call()
            with private.FakeCopyMode(mode):
                return deepcopy(built)
    except KernelError:
        raise
    except Exception as error:
        raise KernelError(f"{name} raised {line(error)}") from error


def _checked(name: str, result: Any) -> Built:
    match result:
        case (nn.Module() as model, Tensor() as tensor):
            return model, (tensor,), {}
        case (nn.Module() as model, tuple() as args):
            return model, args, {}
        case (nn.Module() as model, dict() as kwargs):
            return model, (), kwargs
    got = ", ".join(type(part).__name__ for part in result) if isinstance(result, tuple) else type(result).__name__
    raise KernelError(f"{name} must give a model and a tensor, tuple or dictionary of inputs, got {got}")
