"""Finds in-place modules that cannot be replaced: those whose overwritten input is read again."""

import copy
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import Any, Self

from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from kernels.conversion.changes import Change, Decision, ReplaceForward, ReplaceModule, apply, undo
from kernels.conversion.derivative_error import FORWARD_AD
from kernels.conversion.measurement import Run
from kernels.conversion.sites import LayerSite, Site
from kernels.memory.storages import operand_storages, tensors
from kernels.methods.compressed import Compressed
from kernels.private import DispatchMode


def reasons_in_place(model: nn.Module, sites: Collection[Site], run: Run | None) -> dict[Site, str]:
    """The reason for each in-place site that is left alone, as its input is, or may be, read again."""
    in_place = [site for site in sites if getattr(site.original, "inplace", False)]
    if run is None:
        reason = "it works in place: give inputs, so that it can be seen whether its input is read again"
        return dict.fromkeys(in_place, reason)
    if not in_place:
        return {}
    changes: list[Change] = []
    try:
        for site in in_place:
            apply(site, Decision(Compressed() if isinstance(site, LayerSite) else FORWARD_AD, trusted=True), changes)
        names = {change.new: change.site.name for change in changes if isinstance(change, ReplaceModule)}
        names |= {change.site.original: change.site.name for change in changes if isinstance(change, ReplaceForward)}
        watch = Rereads(model, names)
        run({}, watch)
    finally:
        undo(changes)
    return {site: "it works in place, and its input is read again" for site in in_place if site.name in watch.reread}


class Rereads(DispatchMode):
    """Runs with modules that no longer work in place; `reread` collects the names of those whose input is read later.

    An operation may read it, or the caller as part of the model's output. A deep copy, made with a copy of the model,
    adds to the same `reread`.
    """

    def __init__(self, model: nn.Module, modules: Mapping[nn.Module, str], reread: set[str] | None = None) -> None:
        self.model, self.modules = model, modules
        self.reread: set[str] = set() if reread is None else reread
        self._inputs: dict[int, tuple[StorageWeakRef, str]] = {}  # the reference keeps the address from being reused

    def __deepcopy__(self, memo: dict[int, Any]) -> "Rereads":
        modules = {copy.deepcopy(module, memo): name for module, name in self.modules.items()}
        return Rereads(copy.deepcopy(self.model, memo), modules, self.reread)

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
                self.reread.add(self._inputs[storage._cdata][1])
