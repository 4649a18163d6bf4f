"""State of torch around a layer: hooks of saved tensors, autocast."""

import torch


def saving_hooks() -> tuple[object, object] | None:
    """The current pair of saved-tensor hooks, or None. If it changes during forward, a checkpoint began."""
    hooks: tuple[object, object] | None = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks


def autocasts(kind: str) -> bool:
    """Whether a device type has autocast; meta has not. Up to torch 2.12 Dynamo cannot trace torch's own check."""
    return kind != "meta" and (torch.compiler.is_compiling() or torch.amp.is_autocast_available(kind))
