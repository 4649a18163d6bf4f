"""A user's own model, given as `package.module:function`."""

from contextlib import suppress
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from actfit.kernels import private
from actfit.kernels.errors import KernelError
from actfit.kernels.memory.making import building, imported, line

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def user_model(name: str, dtype: torch.dtype | None) -> Built:
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
        with suppress(
            AssertionError, RuntimeError
        ):  # torch's own errors only: for a user's bug no real tensors must be made
            built = call()
            if all(private.is_fake(tensor) for tensor in _tensors(built)):
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


def _tensors(built: Built) -> list[Tensor]:
    model, args, kwargs = built
    leaves = [*model.parameters(), *model.buffers(), *private.tree_leaves((args, kwargs))]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


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
