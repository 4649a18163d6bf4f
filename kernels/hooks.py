"""What of torch is at work around a layer: hooks of saved tensors, autocast."""

import torch


def saving_hooks() -> tuple[object, object] | None:
    """The pair that packs and unpacks now, or None: by it one tells whether a checkpoint began meanwhile."""
    found: tuple[object, object] | None = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return found


def autocasts(kind: str) -> bool:
    """Whether a kind of device has autocast: not meta. Up to torch 2.12 Dynamo cannot ask torch."""
    return kind != "meta" and (torch.compiler.is_compiling() or torch.amp.is_autocast_available(kind))
