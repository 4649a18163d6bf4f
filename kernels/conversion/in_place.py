"""Whether a module that works in place can be replaced by one that does not: not if its input is read again."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Self

from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.memory.recorder import leaves, storages


class Rereads(TorchDispatchMode):
    """While a model runs with modules that are not in place any more, notes in `found` whose input is read later."""

    def __init__(self, modules: Mapping[nn.Module, str]) -> None:
        super().__init__()
        self.modules, self.found = modules, set[str]()
        self._inputs: dict[int, tuple[StorageWeakRef, str]] = {}  # the reference keeps the address from being reused

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for module in self.modules:
                stack.callback(module.register_forward_hook(self._note).remove)
            super().__enter__()
            self._hooks = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._hooks.close()

    def _note(self, module: nn.Module, args: Any, output: Any) -> None:
        for storage in (storage for one in leaves(args) for storage in storages(one)):
            self._inputs[storage._cdata] = StorageWeakRef(storage), self.modules[module]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for storage in (storage for one in leaves((args, kwargs)) for storage in storages(one)):
            if storage._cdata in self._inputs:
                self.found.add(self._inputs[storage._cdata][1])
        return func(*args, **(kwargs or {}))
