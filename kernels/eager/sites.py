"""Names of the tensors that a forward pass saves, the same in each pass: by them a plan gives each its bits."""

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from threading import get_ident
from typing import Any, Self

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class Sites:
    """A context manager that tracks the running module and names the tensors saved in it.

    A site is "module: function", followed by a number from this function's second tensor in this module on, as in
    "layers.0.mlp: mul 2". Tensors without codes count, too, so that numbers do not depend on sizes.

    Parameters
    ----------
    names
        Names of modules. A module without a name counts as part of its caller.
    """

    def __init__(self, names: Mapping[nn.Module, str]) -> None:
        self._names, self._running = names, [""]
        self._counts: Counter[str] = Counter()
        self._hooks = ExitStack()

    def __enter__(self) -> Self:
        self._thread = get_ident()  # global hooks also see modules that run in other threads
        self._hooks.callback(register_module_forward_pre_hook(self._begins).remove)
        self._hooks.callback(register_module_forward_hook(self._ends, always_call=True).remove)
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.close()
        self._names = {}  # autograd's graph refers to this object: with modules, one that holds a graph is never freed

    def name(self, function: str) -> str:
        """The name of the next tensor that a function saves here."""
        site = f"{self._running[-1]}: {function}"
        self._counts[site] += 1
        return site if self._counts[site] == 1 else f"{site} {self._counts[site]}"

    def _begins(self, module: nn.Module, *_: Any) -> None:
        if get_ident() == self._thread:
            self._running.append(self._names.get(module, self._running[-1]))

    def _ends(self, module: nn.Module, *_: Any) -> None:
        if get_ident() == self._thread:
            self._running.pop()
