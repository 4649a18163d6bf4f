"""Replacements for a module's forward: saved tensors in few bits, recomputed, or left as they are."""

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from kernels.eager.coder import Coder
from kernels.eager.mode import Compressing
from kernels.eager.outer_hooks import outer_hooks
from kernels.eager.watch import Watch
from kernels.forwarding import Forwarding
from kernels.methods.every_tensor import EveryTensor


class InFewBits(Forwarding):
    """Replaces the forward of `module`; compiled code and functorch transforms save as without it.

    Parameters
    ----------
    module
        The module.
    method
        compress or a plan.
    name
        Its name in the model.
    watch
        What sees the errors of decoded tensors, if these are to be watched.
    """

    def __init__(self, module: nn.Module, method: EveryTensor, name: str = "", watch: Watch | None = None) -> None:
        super().__init__(module, method=method, name=name, watch=watch)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _saves_as_it_is():
            return self.original(*args, **kwargs)
        own = chain(self.module.parameters(), self.module.buffers())
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        with self.mode(self.options.method, own, inputs, self._names()):
            return self.original(*args, **kwargs)

    def mode(self, *given: Any) -> Compressing:
        """The context in which forward runs."""
        return Compressing(*given, coder=Coder(self.options.method, self.options.watch))

    def _names(self) -> dict[nn.Module, str]:
        """Names of modules in the model, if the method goes by site."""
        if not self.options.method.by_site:
            return {}
        return {module: name for name, module in self.module.named_modules(prefix=self.options.name)}


class Recomputed(Forwarding):
    """Replaces the forward of a module that backward runs again: only its arguments are saved."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _saves_as_it_is():
            return self.original(*args, **kwargs)
        # All by position: checkpoint saves only positional arguments by autograd, and so by the hooks.
        return checkpoint(self._again, tuple(kwargs), *args, *kwargs.values(), use_reentrant=False)

    def _again(self, names: tuple[str, ...], *given: Any) -> Any:
        positional = len(given) - len(names)
        return self.original(*given[:positional], **dict(zip(names, given[positional:], strict=True)))


class Untouched(Forwarding):
    """Replaces the forward of a module that is left as it is within a converted one."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return self.original(*args, **kwargs)
        with torch.autograd.graph.saved_tensors_hooks(*(outer_hooks() or (_same, _same))):
            return self.original(*args, **kwargs)


def _saves_as_it_is() -> bool:
    """True if no gradient is needed, or compiled code or a functorch transform saves."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return True
    return bool(torch._C._are_functorch_transforms_active())


def _same(x: Tensor) -> Tensor:
    return x
