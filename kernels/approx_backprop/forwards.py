"""Replacements for the forward of a module, which save few bits by approx-backprop; the module stays the same."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from kernels.approx_backprop.attached import UNNAMED, Origin
from kernels.approx_backprop.layers import activated, approximately, kind_of
from kernels.approx_backprop.written_norms import written_norm
from kernels.engine.elements import is_plain
from kernels.forwarding import Forwarding
from kernels.methods.compressed import Compressed


class Approximate(Forwarding):
    """Replaces the forward of `module`."""

    def __init__(self, module: nn.Module, method: Compressed, origin: Origin = UNNAMED) -> None:
        kind = kind_of(module)
        super().__init__(
            module, method=method, origin=origin, kind=kind, written=written_norm(module) if kind == "written" else None
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = [*args, *kwargs.values()]
        if len(arguments) != 1:  # as with an output_size
            return self.original(*args, **kwargs)
        options = self.options
        return approximately(
            self.module, arguments[0], options.method, options.kind, options.written, self.original, options.origin
        )


class Activated(Forwarding):
    """Replaces the forward of a module that computes a function of the catalogue; saves its derivative."""

    def __init__(self, module: nn.Module, function: str, params: Mapping[str, float], method: Compressed) -> None:
        super().__init__(module, function=function, params=dict(params), method=method)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = [*args, *kwargs.values()]
        if not self.module.training or len(arguments) != 1 or not is_plain(arguments[0]):
            return self.original(*args, **kwargs)
        return activated(self.options.function, self.options.params, arguments[0], self.options.method)
