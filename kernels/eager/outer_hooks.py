"""Saved-tensor hooks that surround one of our forward passes, such as `save_on_cpu`."""

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from kernels import private
from kernels.torch_state import saving_hooks


class WithOuterHooks(TorchFunctionMode):
    """A forward pass with saved-tensor hooks of its own; `outer` holds the hooks that surround it, or None."""

    outer: Any


def unpack(outer: Any, packed: Any) -> Tensor:
    """The tensor that the outer hooks packed."""
    if outer is None:
        tensor: Tensor = packed
        return tensor
    with private.EnableTorchFunction():  # an outer checkpoint runs the forward pass again, in such a mode
        tensor = outer[1](packed)
    return tensor


def outer_hooks() -> Any:
    """The hooks that surround a forward pass, without those of other passes of ours."""
    hooks: Any = saving_hooks()
    owner = getattr(hooks[0], "__self__", None) if hooks else None
    return owner.outer if isinstance(owner, WithOuterHooks) else hooks
