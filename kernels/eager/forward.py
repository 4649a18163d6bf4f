"""Replacements for a module's forward: saved tensors in few bits, recomputed, or left as they are."""

import threading
import warnings
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kernels import private
from kernels.eager.coder import Coder
from kernels.eager.mode import Compressing
from kernels.eager.outer_hooks import outer_hooks
from kernels.eager.watch import Watch
from kernels.forwarding import Forwarding
from kernels.methods.every_tensor import EveryTensor
from kernels.torch_state import runs_again


class _Running(threading.local):
    depth = 0  # of forward passes of converted modules in this thread


_running = _Running()


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
        if self._saves_as_it_is():
            return self.original(*args, **kwargs)
        own = chain(self.module.parameters(), self.module.buffers())
        inputs = [leaf for leaf in private.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        _running.depth += 1
        try:
            with self.mode(self.options.method, own, inputs, self._names()) as mode:
                output = self.original(*args, **kwargs)
                mode.keeper.hand_out(output)
                return output
        finally:
            _running.depth -= 1

    def _saves_as_it_is(self) -> bool:
        """Whether forward runs as without this object."""
        if torch.compiler.is_compiling() and torch.is_grad_enabled() and not private.exporting():
            _warn_of_compiling()
        return _saves_as_it_is()

    def mode(self, *given: Any) -> Compressing:
        """The context in which forward runs."""
        return Compressing(*given, coder=Coder(self.options.method, self.options.watch))

    def _names(self) -> dict[nn.Module, str]:
        """Names of modules in the model, if the method goes by site."""
        if not self.options.method.by_site:
            return {}
        return {module: name for name, module in self.module.named_modules(prefix=self.options.name)}


class InFewBitsApart(InFewBits):
    """Replaces the forward of a module inside of a converted one, for calls by other methods than its forward.

    Within the forward of the module around it, it runs as it is; also in a checkpoint, whose second run is apart.
    """

    def _saves_as_it_is(self) -> bool:
        return _saves_as_it_is() or _running.depth > 0 or runs_again()


_warned: list[bool] = []


@torch.compiler.assume_constant_result  # so it runs when code is compiled
def _warn_of_compiling() -> bool:
    """Warn, once in a process, where the options of torch.compile have no codes; tells whether it did."""
    if _warned or type(private.partitioner()).__module__.startswith("kernels.compression."):
        return False
    _warned.append(True)
    warnings.warn(
        "options of torch.compile must have codes for compiled code to save less, got none, and convert does not count"
        " there; write torch.compile(model, options=kernels.compression.options(bits=...)), which needs no convert, and"
        " give that model to a Trainer instead of torch_compile=True",
        stacklevel=2,
    )
    return True


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
        if torch.compiler.is_compiling() or private.in_transform():
            return self.original(*args, **kwargs)
        with torch.autograd.graph.saved_tensors_hooks(*(outer_hooks() or (_same, _same))):
            return self.original(*args, **kwargs)


def _saves_as_it_is() -> bool:
    """True if no gradient is needed, or compiled code, a functorch transform or a trace saves."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or torch.jit.is_tracing():
        return True
    return private.in_transform()


def _same(x: Tensor) -> Tensor:
    return x
