"""State of torch around a layer: hooks of saved tensors, autocast."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def saving_hooks() -> tuple[object, object] | None:
    """The current pair of saved-tensor hooks, or None. If it changes during forward, a checkpoint began."""
    hooks: tuple[object, object] | None = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks


def runs_again() -> bool:
    """Whether a checkpoint runs forward, or backward runs it once more."""
    hooks = saving_hooks()
    in_checkpoint = hooks is not None and getattr(hooks[0], "__module__", "") == checkpoint.__module__
    return in_checkpoint or int(torch._C._current_graph_task_id()) != -1


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
