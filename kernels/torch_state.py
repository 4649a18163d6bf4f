"""State of torch around a layer: hooks of saved tensors, autocast."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kernels import private


def saving_hooks() -> tuple[object, object] | None:
    """The current pair of saved-tensor hooks, or None. If it changes during forward, a checkpoint began."""
    hooks: tuple[object, object] | None = private.top_saved_tensors_default_hooks(False)
    return hooks


def is_wrapper(value: Any) -> bool:
    """Whether it is a tensor made of inner ones, as a DTensor is: it can take itself apart."""
    if not isinstance(value, Tensor) or type(value) is Tensor:
        return False
    return hasattr(value, "__tensor_flatten__") and hasattr(value, "__tensor_unflatten__")


def is_plain_type(x: Tensor) -> bool:
    """Whether a tensor is of torch's own class, a parameter or fake, and of no other subclass."""
    return type(x) is Tensor or type(x) is nn.Parameter or type(x) is private.FakeTensor


def clamp_passes_at_ends() -> bool:
    """Whether the gradient of clamp is 1 at ends that are numbers, as up to torch 2.13; since 2.14 it is 0."""
    return private.release() < (2, 14)


def runs_again() -> bool:
    """Whether a checkpoint runs forward, or backward runs it once more."""
    hooks = saving_hooks()
    in_checkpoint = hooks is not None and getattr(hooks[0], "__module__", "") == checkpoint.__module__
    return in_checkpoint or int(private.current_graph_task_id()) != -1


def autocasts(kind: str) -> bool:
    """Whether a device type has autocast; meta has not. Up to torch 2.12 Dynamo cannot trace torch's own check."""
    return kind != "meta" and (torch.compiler.is_compiling() or torch.amp.is_autocast_available(kind))


def autocasting(given: Sequence[Tensor]) -> bool:
    """Whether autocast is on for the device of these tensors."""
    return bool(given) and autocast_of(given[0].device.type)[2]


def autocast_of(kind: str) -> tuple[str, torch.dtype | None, bool]:
    """Arguments of torch.autocast that restore its current state: kind of device, type, and whether it is on."""
    if not autocasts(kind):
        return "cpu", None, False
    enabled = torch.is_autocast_enabled(kind)
    return kind, torch.get_autocast_dtype(kind) if enabled else None, enabled
