"""What stands for the forward of a module all of whose saved tensors are kept in few bits."""

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from kernels.eager.around import hooks_around
from kernels.eager.mode import Compressing
from kernels.forwarding import Forwarding
from kernels.methods.every_tensor import EveryTensor


class InFewBits(Forwarding):
    """Stands for the forward of `module`. Compiled code and functorch's transforms save as they would without it."""

    def __init__(self, module: nn.Module, method: EveryTensor, name: str = "") -> None:
        super().__init__(module, method=method, name=name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _saves_as_it_is():
            return self.original(*args, **kwargs)
        own = chain(self.module.parameters(), self.module.buffers())
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        with self.mode(self.options.method, own, given, self._names()):
            return self.original(*args, **kwargs)

    def mode(self, *given: Any) -> Compressing:
        """What forward runs in."""
        return Compressing(*given)

    def _names(self) -> dict[nn.Module, str]:
        """Of modules in the model, for a method that asks for them."""
        if not self.options.method.by_site:
            return {}
        return {module: name for name, module in self.module.named_modules(prefix=self.options.name)}


class Recomputed(Forwarding):
    """Stands for the forward of a module that backward runs again: of it, only what it is given is saved."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _saves_as_it_is():
            return self.original(*args, **kwargs)
        # All by position: checkpoint has only those saved as autograd does, by what may be codes.
        return checkpoint(self._again, tuple(kwargs), *args, *kwargs.values(), use_reentrant=False)

    def _again(self, names: tuple[str, ...], *given: Any) -> Any:
        positional = len(given) - len(names)
        return self.original(*given[:positional], **dict(zip(names, given[positional:], strict=True)))


class Untouched(Forwarding):
    """Stands for the forward of a module whose saved tensors stay as they are, within one whose do not."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return self.original(*args, **kwargs)
        with torch.autograd.graph.saved_tensors_hooks(*(hooks_around() or (_same, _same))):
            return self.original(*args, **kwargs)


def _saves_as_it_is() -> bool:
    """Whether nothing is saved here, or compiled code or functorch's transforms save it."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return True
    return bool(torch._C._are_functorch_transforms_active())


def _same(x: Tensor) -> Tensor:
    return x
