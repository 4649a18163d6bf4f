"""State of torch around a layer: kinds of tensors, autocast."""

from typing import Any

import torch
from torch import Tensor

from actfit.kernels import private


def is_wrapper(value: Any) -> bool:
    """Whether it is a tensor made of inner ones, as a DTensor is: it can take itself apart."""
    if not isinstance(value, Tensor) or type(value) is Tensor:
        return False
    return hasattr(value, "__tensor_flatten__") and hasattr(value, "__tensor_unflatten__")


def clamp_passes_at_ends() -> bool:
    """Whether the gradient of clamp is 1 at ends that are numbers, as up to torch 2.13; since 2.14 it is 0."""
    return private.release() < (2, 14)


def autocasts(kind: str) -> bool:
    """Whether a device type has autocast; meta has not. Up to torch 2.12 Dynamo cannot trace torch's own check."""
    return kind != "meta" and (torch.compiler.is_compiling() or torch.amp.is_autocast_available(kind))
