"""What all logits of one call of a layer have in common, whatever became of their shape."""

import weakref
from typing import Any

import torch

from actfit.kernels.errors import KernelError
from actfit.kernels.head.chunked import Linear

WAY_OUT = "give chunked_loss=False to compress"


class Family:
    """All Logits of one call of a layer, in whatever shape: once numbers of one are needed, all become plain tensors.

    So that a change in place, and a hook, reach whatever they reach in stock.
    """

    def __init__(self, name: str, linear: Linear | None = None) -> None:
        self.name = name  # of the layer
        # Whether a loss was computed of them, or code below Python's functions read them: then no gradient comes by.
        self.used = False
        self.asked: str | None = None  # the operation that needed all logits
        self._members: list[weakref.ref[Any]] = []
        self._linear: Any = linear and weakref.ref(linear)  # Logits hold it, and with it what it is made of
        self._versions = linear and linear.versions

    def add(self, logits: Any) -> None:
        self._members.append(weakref.ref(logits))

    def check(self) -> None:
        """Raise KernelError if logits would be others than those of the call."""
        linear = self._linear()
        if linear.versions != self._versions or linear.freed:
            raise KernelError(
                f"logits of {self.name or 'the layer'} must be read before the layer's weights or inputs change or are"
                f" freed, as by optimizer.step(), got a use after that; read them before, or {WAY_OUT}"
            )

    def make(self, why: str) -> None:
        """Make all logits, in the order in which they were asked for."""
        self.check()
        self.asked = self.asked or why
        with torch.inference_mode(False), torch.enable_grad():
            for reference in self._members:
                member = reference()
                if member is not None and member._made is None:
                    member._made = member.make()
