"""What stands for the forward of a module all of whose saved tensors are kept in few bits."""

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from kernels.eager.mode import Compressing, hooks_around
from kernels.forwarding import Forwarding
from kernels.methods.every_tensor import EveryTensor


class InFewBits(Forwarding):
    """Stands for the forward of `module`. Compiled code and functorch's transforms save as they would without it."""

    def __init__(self, module: nn.Module, method: EveryTensor) -> None:
        super().__init__(module, method=method)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return self.original(*args, **kwargs)
        if torch._C._are_functorch_transforms_active():
            return self.original(*args, **kwargs)
        own = chain(self.module.parameters(), self.module.buffers())
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        with Compressing(self.options.method, own, given):
            return self.original(*args, **kwargs)


class Untouched(Forwarding):
    """Stands for the forward of a module whose saved tensors stay as they are, within one whose do not."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return self.original(*args, **kwargs)
        with torch.autograd.graph.saved_tensors_hooks(*(hooks_around() or (_same, _same))):
            return self.original(*args, **kwargs)


def _same(x: Tensor) -> Tensor:
    return x
