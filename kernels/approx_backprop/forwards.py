"""What stands for the forward of one of torch's modules, so that it keeps few bits; the module stays the same."""

from typing import Any

from torch import nn

from kernels.approx_backprop.how import How
from kernels.approx_backprop.layers import approximately, kind_of
from kernels.forwarding import Forwarding


class Approximate(Forwarding):
    """Stands for the forward of `module`."""

    def __init__(self, module: nn.Module, how: How) -> None:
        super().__init__(module)
        self.how, self.kind = how, kind_of(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        if len(given) != 1:  # as with an output_size
            return self.original(*args, **kwargs)
        return approximately(self.module, given[0], self.how, self.kind)
