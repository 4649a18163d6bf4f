"""Linear layers that make logits of many classes: in training, the numbers wait until somebody needs them."""

import copy
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from actfit.kernels.head.chunked import Linear, rows_of
from actfit.kernels.head.family import Family
from actfit.kernels.head.logits import deferred
from actfit.kernels.private import is_fake
from actfit.kernels.stock import transformed

MANY = 2048  # classes, of fewer there is nothing to gain
WIDER = 6  # × the width of what comes in; layers inside of networks widen by 4 or less, Llama 2 ends in 7.8


def is_head(module: nn.Module) -> bool:
    """Whether a layer's results are so many that the memory of a step may be theirs."""
    return type(module) is nn.Linear and module.out_features >= max(MANY, WIDER * module.in_features)


class Head:
    """In place of the `forward` of the linear layer of that name: gives logits that are made when they are needed.

    `own` is a `forward` that the instance had already; None: that of its class.
    """

    def __init__(self, module: nn.Linear, name: str, own: Callable[..., Any] | None = None) -> None:
        self._module, self.name, self.own = weakref.ref(module), name, own
        self.last = Family(name)  # what became of the last call's logits

    def __call__(self, input: Tensor) -> Tensor:
        module: Any = self._module()
        if self.own is not None or not _waits(module, input):
            return self._stock(input)
        values = (input, module.weight, module.bias)
        if torch.is_autocast_enabled(input.device.type):
            dtype = torch.get_autocast_dtype(input.device.type)
            values = tuple(x if x is None or x.dtype == torch.float64 else x.to(dtype) for x in values)
        x, weight, _ = values
        if x.dtype != weight.dtype:
            return self._stock(input)
        made, self.last = deferred(Linear(*values), self.name)
        return made

    def _stock(self, input: Tensor) -> Tensor:
        own = self.own or nn.Linear.forward.__get__(self._module())
        made: Tensor = own(input)
        return made

    def __str__(self) -> str:
        if self.last.asked is not None:
            return f"{self.name} made all logits, for {self.last.asked}"
        rows = rows_of(self._module().weight)  # type: ignore[union-attr]
        return f"{self.name}: its cross-entropy is computed in chunks of {rows} rows" if self.last.used else ""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Head":
        return Head(copy.deepcopy(self._module(), memo), self.name, copy.deepcopy(self.own, memo))

    def __reduce__(self) -> Any:
        return Head, (self._module(), self.name, self.own)


def _waits(module: nn.Linear, x: Any) -> bool:
    """Whether logits may wait: in training, of plain tensors that fit."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or transformed():
        return False
    tensors = Linear(x, module.weight, module.bias).given
    if not all(type(each) in (Tensor, nn.Parameter) or is_fake(each) for each in tensors):
        return False
    if type(module) is not nn.Linear:
        return False  # FSDP frees the weights of a layer that it wraps
    fits = x.dim() >= 2 and x.shape[-1] == module.in_features and x.device == module.weight.device
    return fits and x.layout == torch.strided and any(each.requires_grad for each in tensors)
