"""Whether a module that works in place can be replaced by one that does not: not if its input is read again."""

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Self

from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.memory.storages import operand_storages, tensors


class Rereads(TorchDispatchMode):
    """While a model runs with modules that are not in place any more, notes in `found` whose input is read later.

    That is by an operation, or by whoever gets the model's output. A copy, made with a copy of the model, notes in the
    same `found`.
    """

    def __init__(self, model: nn.Module, modules: Mapping[nn.Module, str], found: set[str] | None = None) -> None:
        super().__init__()
        self.model, self.modules = model, modules
        self.found: set[str] = set() if found is None else found
        self._inputs: dict[int, tuple[StorageWeakRef, str]] = {}  # the reference keeps the address from being reused

    def __deepcopy__(self, memo: dict[int, Any]) -> "Rereads":
        modules = {copy.deepcopy(module, memo): name for module, name in self.modules.items()}
        return Rereads(copy.deepcopy(self.model, memo), modules, self.found)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.model.register_forward_hook(self._read_output).remove)
            for module in self.modules:
                stack.callback(module.register_forward_hook(self._note).remove)
            super().__enter__()
            self._hooks = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._hooks.close()

    def _note(self, module: nn.Module, args: Any, output: Any) -> None:
        for storage in operand_storages(args):
            self._inputs[storage._cdata] = StorageWeakRef(storage), self.modules[module]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._read((args, kwargs))
        return func(*args, **(kwargs or {}))

    def _read_output(self, module: nn.Module, args: Any, output: Any) -> None:
        self._read([*tensors(output)])

    def _read(self, values: Any) -> None:
        for storage in operand_storages(values):
            if storage._cdata in self._inputs:
                self.found.add(self._inputs[storage._cdata][1])
